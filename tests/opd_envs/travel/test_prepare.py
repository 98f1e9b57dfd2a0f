"""The travel tasks' preparation: verl's columns, a split that leaks nothing, every dropped row counted."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest
from tests.opd_envs.travel.tokenizers_under_test import byte_level_bpe

from opd_envs.travel.make_database import write_database
from opd_envs.travel.prepare import main
from opd_envs.travel.reward import compute_score
from opd_envs.travel.task import parse_task

NUM_TASKS = 10


@pytest.fixture(scope="module")
def database_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent-data") / "database"
    write_database(folder, seed=1, num_cities=20)
    return folder


def rows_of(folder, name: str):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def generate(database_dir, out, *options: str):
    main(["--database-dir", str(database_dir), "--output-dir", str(out), "--num-tasks", str(NUM_TASKS), *options])
    return out


@pytest.fixture(scope="module")
def generated(database_dir, tmp_path_factory):
    return generate(database_dir, tmp_path_factory.mktemp("generated"), "--solutions")


def test_four_in_five_tasks_of_each_grade_and_language_are_for_training(generated):
    train = Counter((r["extra_info"]["language"], r["extra_info"]["grade"]) for r in rows_of(generated, "train"))
    assert train == {(language, grade): 8 for language in ("en", "zh") for grade in range(5)}
    for language in ("en", "zh"):
        rows = rows_of(generated, f"val_travel_{language}")
        assert {r["data_source"] for r in rows} == {f"travel_{language}"}
        assert Counter(r["extra_info"]["grade"] for r in rows) == dict.fromkeys(range(5), 2)


def test_indices_are_unique_and_every_row_has_a_solution_that_scores_one(generated, database_dir):
    solutions = [json.loads(line) for line in (generated / "solutions.jsonl").read_text().splitlines()]
    by_index = {solution["index"]: solution["solution"] for solution in solutions}
    rows = [row for name in ("train", "val_travel_en", "val_travel_zh") for row in rows_of(generated, name)]
    assert sorted(row["extra_info"]["index"] for row in rows) == sorted(by_index) == list(range(100))
    for row in rows:
        text, truth = by_index[row["extra_info"]["index"]], row["reward_model"]["ground_truth"]
        score = compute_score(row["data_source"], text, truth, row["extra_info"], database_dir=str(database_dir))
        assert score["acc"] == 1.0


def test_every_demand_of_a_task_is_in_its_prompt(generated):
    for row in [*rows_of(generated, "val_travel_en"), *rows_of(generated, "val_travel_zh")]:
        task = parse_task(row["reward_model"]["ground_truth"])
        asked = row["prompt"][-1]["content"]
        if task.kind == "trip":
            assert all(name in asked for name in (task.origin, *task.destinations, str(task.start_date)))
            demands = dict(task.hard.asked())
            demands.pop("transport_mode", None)
            for value in demands.values():
                assert all(str(part) in asked for part in (value if isinstance(value, tuple) else (value,)))
        else:
            wanted = (task.city, task.name, task.destination, task.min_stars, task.date)
            assert all(str(value) in asked for value in wanted if value is not None)


def test_the_same_command_writes_the_same_rows_and_another_seed_others(database_dir, generated, tmp_path):
    again = generate(database_dir, tmp_path / "again")
    other = generate(database_dir, tmp_path / "other", "--seed", "43")
    for name in ("train", "val_travel_en", "val_travel_zh"):
        assert rows_of(again, name) == rows_of(generated, name)
        assert rows_of(other, name) != rows_of(generated, name)


def test_the_simplest_grade_asks_the_same_question_in_many_episodes(database_dir, tmp_path):
    out = tmp_path / "out"
    options = ["--grades", "0", "--languages", "en", "--num-cities", "1", "--tools", "needed", "--num-tasks", "200"]
    main(["--database-dir", str(database_dir), "--output-dir", str(out), *options])
    rows = rows_of(out, "train") + rows_of(out, "val_travel_en")
    assert len(rows) == 200
    assert len({row["prompt"][-1]["content"] for row in rows}) <= 40  # the places of one city
    assert len({row["extra_info"]["episode_seed"] for row in rows}) == 200
    assert all(row["extra_info"]["tool_selection"] == ["get_price"] for row in rows)


def test_with_fixed_prices_a_training_row_that_validation_asks_too_is_dropped_and_counted(database_dir, tmp_path):
    out = tmp_path / "out"
    options = ["--grades", "0", "--languages", "en", "--num-cities", "1", "--fixed-prices", "--num-tasks", "100"]
    main(["--database-dir", str(database_dir), "--output-dir", str(out), *options])
    train, val = ([row["prompt"][-1]["content"] for row in rows_of(out, name)] for name in ("train", "val_travel_en"))
    assert not set(train) & set(val)
    assert len(set(train)) == len(train)
    dropped = json.loads((out / "summary.json").read_text())["sets"]["all, filtered"]["num_dropped"]
    assert dropped["duplicate_task"] > 0
    assert dropped["validation_task"] > 0
    assert len(train) + len(val) + sum(dropped.values()) == 100


def test_the_length_rule_counts_the_tools_descriptions_as_well(database_dir, tmp_path):
    tokenizer = byte_level_bpe()
    tokenizer.chat_template = "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    options = ["--grades", "0", "2", "--tools", "needed", "--tokenizer", str(tmp_path / "tokenizer")]
    out = generate(database_dir, tmp_path / "out", *options, "--languages", "en", "--max-prompt-length", "1500")
    kept = [*rows_of(out, "train"), *rows_of(out, "val_travel_en")]
    assert {row["extra_info"]["grade"] for row in kept} == {0}
    summary = json.loads((out / "summary.json").read_text())["sets"]["all, filtered"]
    assert summary["num_dropped"] == {"prompt_too_long": NUM_TASKS}


def test_a_missing_database_is_one_line_that_says_how_to_make_it(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DATABASE_DIR", raising=False)
    for arguments, message in (
        ([], "--database-dir is not set: make a database with opd_envs.travel.make_database"),
        (["--database-dir", str(tmp_path)], "holds no manifest.json"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err
