"""The travel tasks' preparation: verl's columns, a split by grade and language, a solution for every row."""

from collections import Counter

import pyarrow.parquet as pq
import pytest

from opd_envs.travel.database import Database
from opd_envs.travel.generate import generate_task
from opd_envs.travel.prepare import main
from opd_envs.travel.reward import compute_score
from opd_envs.travel.task import parse_task

FILES = ("train", "val_travel_en", "val_travel_zh")
SPLIT = {"train": 8, "val_travel_en": 2, "val_travel_zh": 2}


def generate(database_dir, out, *options: str):
    main(["--database-dir", str(database_dir), "--output-dir", str(out), "--num-tasks", "10", *options])
    return {name: pq.read_table(out / f"{name}.parquet").to_pylist() for name in FILES}


@pytest.fixture(scope="module")
def generated(database_dir, tmp_path_factory):
    return generate(database_dir, tmp_path_factory.mktemp("generated"))


def test_four_in_five_tasks_of_each_grade_and_language_are_for_training(generated):
    for name, rows in generated.items():
        languages = [name[-2:]] if name != "train" else ["en", "zh"]
        found = Counter((row["data_source"], row["extra_info"]["grade"]) for row in rows)
        assert found == {(f"travel_{language}", grade): SPLIT[name] for language in languages for grade in range(5)}
    assert sorted(row["extra_info"]["index"] for rows in generated.values() for row in rows) == list(range(100))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("grade", range(5))
def test_every_task_has_a_solution_that_scores_one_with_an_entry_for_each_constraint(database_dir, grade, language):
    database = Database(database_dir)
    for number in range(5):
        task = generate_task(database, seed=5, grade=grade, language=language, number=number)
        info = {"episode_seed": task.episode_seed, "grade": grade}
        text = f"Let me look. {task.solution} Have a nice day."
        row = compute_score("x", text, task.task.model_dump_json(), info, database_dir=str(database_dir))
        assert all(value == 1.0 for name, value in row.items() if name != "pred")
        plan = {"commonsense_plan_given", "commonsense_cost_stated", "hard_budget", "commonsense", "hard"}
        answer = {"question_answer_given", "question_answer_right"}
        assert {"score", "acc", f"grade{grade}", *(plan if grade >= 2 else answer)} <= set(row)


def test_every_demand_of_a_task_is_in_its_prompt(generated):
    for row in [*generated["val_travel_en"], *generated["val_travel_zh"]]:
        task = parse_task(row["reward_model"]["ground_truth"])
        asked = row["prompt"][-1]["content"]
        if task.kind == "trip":
            demands = {name: value for name, value in task.hard.asked() if name != "transport_mode"}
            wanted = [
                task.origin,
                *task.destinations,
                task.start_date,
                *demands.pop("must_visit", ()),
                *demands.values(),
            ]
        else:
            wanted = [task.city, task.name, task.destination, task.min_stars, task.date]
        assert all(str(value) in asked for value in wanted if value is not None)


def test_the_same_command_writes_the_same_rows_and_another_seed_others(database_dir, generated, tmp_path):
    assert generate(database_dir, tmp_path / "again") == generated
    other = generate(database_dir, tmp_path / "other", "--seed", "43")
    assert all(other[name] != generated[name] for name in FILES)


def test_a_missing_database_is_one_line_that_says_how_to_make_it(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DATABASE_DIR", raising=False)
    for arguments, message in (
        ([], "--database-dir is not set: make a database with `python -m opd_envs.travel.make_database"),
        (["--database-dir", str(tmp_path)], "has no manifest.json"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err
