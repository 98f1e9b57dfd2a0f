"""Preparation of the published queries: their layout, drops by reason, cases of the imported database."""

import json
import re
from collections import Counter

import pyarrow.parquet as pq
import pytest
from tests.opd_envs.deepplanning.published import query, write_data

from opd_envs.database_folder import read_manifest
from opd_envs.deepplanning.database import Manifest
from opd_envs.deepplanning.layout import QUERY_FILES
from opd_envs.deepplanning.make_database import main as import_main
from opd_envs.deepplanning.prepare import main
from opd_envs.deepplanning.task import BenchmarkTrip, parse_task

HOTEL = {"constraint_type": "superlative_cheapest_star", "hotel_name": "Hotel A", "hotel_star": 3, "hotel_price": 9.0}
NEARBY = {"constraint_type": "superlative_x", "attraction_name": "Not to be visited", "restaurant_name": "Diner"}
SEATS = {"constraint_context": "any train with seats", "outbound_train_no": "G1", "people_number": 3}
WANTED = {"hotel_cheapest_star": HOTEL, "restaurant_near": NEARBY, "train_seat_status": SEATS, "weather": {}}


@pytest.fixture
def published(tmp_path):
    """Return a data folder with ten queries a language."""
    for language, file in QUERY_FILES.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(json.dumps([query(language, str(n), **WANTED) for n in range(10)]))
    return tmp_path


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Return the benchmark's database with nine cases a language."""
    data = write_data(tmp_path_factory.mktemp("imported"), cases=map(str, range(9)))
    import_main(["--data-dir", str(data), "--out", str(data / "db")])
    return data / "db"


def prepare(published, imported, *options: str):
    """Run the command; return rows by file and the summary."""
    main(["--data-dir", str(published), "--database-dir", str(imported), *options])
    out = published / "agent_processed"
    return {path.stem: pq.read_table(path).to_pylist() for path in out.glob("*.parquet")}, json.loads(
        (out / "summary.json").read_text()
    )


def refusal(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert caught.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def edit(published, change):
    path = published / QUERY_FILES["en"]
    queries = json.loads(path.read_text())
    change(queries)
    path.write_text(json.dumps(queries))


def test_queries_are_split_by_id_and_name_their_case(published, imported):
    tables, summary = prepare(published, imported)
    train, every = tables["train"], [row for rows in tables.values() for row in rows]
    ids = {row["extra_info"]["problem_id"].rsplit("-", 1)[1] for row in train}
    assert set(Counter(row["data_source"] for row in train).values()) == {len(ids)}  # a translation is on the same side
    assert {row["extra_info"]["case_id"] for row in every} == {f"{name}/{n}" for name in ("en", "zh") for n in range(9)}
    assert {row["extra_info"]["database_id"] for row in every} == {read_manifest(imported, Manifest).database_id}
    assert sorted(row["extra_info"]["index"] for row in every) == list(range(18))
    assert "Day 1:" in train[0]["prompt"][0]["content"]
    named = {"hotel_cheapest_star": ("Hotel A",), "restaurant_near": ("Diner",), "train_seat_status": ("G1",)}
    task = parse_task(train[0]["reward_model"]["ground_truth"])
    assert task.model_copy(update={"origin": "A"}) == BenchmarkTrip(origin="A", num_days=2, required_names=named)
    report = summary["sets"]["deepplanning_travel_en"]
    assert report["num_dropped"] == {"no_case": 1}
    assert report["notes"] == ["constraints of an unknown kind are not checked: {'weather': 10}"]


def constraints_of(queries, number):
    return queries[number]["meta_info"]["hard_constraints"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q: q[3].pop("query"), r"travelplanning_query_en.json: row 4, column 'query': must be a text"),
        (lambda q: q[2].update(id=7), r"row 3, column 'id': must be a text"),
        (lambda q: q[1].update(meta_info=None), r"row 2, column 'meta_info': must be an object"),
        (lambda q: q[0]["meta_info"].update(days="x"), r"row 1, .* must have org \(a text\), whole numbers"),
        (lambda q: constraints_of(q, 0).update(budget_constraint={}), r"row 1, .* max_budget in budget_constraint"),
        (
            lambda q: constraints_of(q, 0).update(train_x={"hotel_name": "Hotel A"}),
            r"hard_constraints.train_x must name an entry in outbound_train_no or inbound_train_no",
        ),
        (lambda q: q.__setitem__(4, "x"), r"row 5 \(counted from 1\) is no object in JSON"),
        (lambda q: q.clear(), r"has no rows"),
    ],
)
def test_a_malformed_file_is_one_line_that_names_file_row_and_column(published, imported, capsys, change, message):
    edit(published, change)
    assert re.search(message, refusal(capsys, f"--data-dir={published}", f"--database-dir={imported}"))
    assert not (published / "agent_processed").exists()


def test_dropped_queries_are_counted_by_reason(published, imported):
    def change(queries):
        queries[2]["meta_info"]["hard_constraints"] = {"weather": {}}
        queries[3]["meta_info"]["hard_constraints"] = {"budget_constraint": {"max_budget": 900}}

    edit(published, change)
    _, summary = prepare(published, imported, "--languages", "en")
    assert summary["sets"]["deepplanning_travel_en"]["num_dropped"] == {"no_case": 1, "nothing_to_check": 1}


def test_a_missing_file_or_database_names_what_to_get(published, imported, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DATABASE_DIR", raising=False)
    absent = refusal(capsys, f"--data-dir={tmp_path / 'none'}", f"--database-dir={imported}")
    assert "no query file is there. Get them from" in absent
    assert "--database-dir is not set: make a database with" in refusal(capsys, f"--data-dir={published}")


def test_a_language_without_its_file_or_cases_is_left_out_by_name(published, imported, capsys):
    (published / QUERY_FILES["zh"]).unlink()
    tables, summary = prepare(published, imported)
    assert set(tables) == {"train", "val_travel_en"}
    (left_out,) = summary["options"]["left_out"]
    assert left_out.endswith("travelplanning_query_zh.json: no such file")
    assert f"left out: {left_out}" in capsys.readouterr().out
    edit(published, lambda queries: [item.update(id=f"x{item['id']}") for item in queries])
    message = refusal(capsys, f"--data-dir={published}", f"--database-dir={imported}")
    assert "none of its queries can be used (no_case 10)" in message
