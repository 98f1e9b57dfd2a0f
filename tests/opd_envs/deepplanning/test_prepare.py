"""The published queries' preparation: their layout read, what is dropped counted, cases of the imported database."""

import json
import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.opd_envs.deepplanning import shop
from tests.opd_envs.deepplanning.published import write_data

from opd_envs.deepplanning.__main__ import main as import_main
from opd_envs.deepplanning.database import verify_database
from opd_envs.deepplanning.parts import ARCHIVES, FOLDER, QUERY_FILES, SHOPPING_PARTS
from opd_envs.deepplanning.prepare import main
from opd_envs.deepplanning.task import BenchmarkCart, BenchmarkFacts, BenchmarkTrip, parse_task


def rows_of(folder, name: str):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False))


def query(number: int, language: str, **constraints):
    """One travel query in the published layout."""
    meta = {"org": "A", "dest": ["B"], "days": 2, "people_number": 1, "hard_constraints": constraints}
    text = f"{language} query {number}"
    return {"id": str(number), "query": text, "meta_info": meta, "query_with_constraints": text}


HOTEL = {"constraint_type": "superlative_cheapest_star", "hotel_name": "Hotel A", "hotel_star": 3, "hotel_price": 9.0}
NEARBY = {"constraint_type": "superlative_x", "attraction_name": "Not to be visited", "restaurant_name": "Diner"}
SEATS = {"constraint_context": "any train with seats", "outbound_train_no": "G1", "people_number": 3}


@pytest.fixture
def published(tmp_path):
    """DeepPlanning's layout: ten queries a language, three levels of two shopping queries."""
    data = tmp_path / "data"
    for language in ("en", "zh"):
        queries = [
            query(n, language, hotel_cheapest_star=HOTEL, restaurant_near=NEARBY, train_seat_status=SEATS, weather={})
            for n in range(10)
        ]
        write_json(data / FOLDER / f"travelplanning/data/travelplanning_query_{language}.json", queries)
    shopping = data / FOLDER / "shoppingplanning"
    for level in (1, 2, 3):
        write_json(shopping / f"data/level_{level}_query_meta.json", [{"id": n, "query": f"{level} {n}"} for n in "12"])
    return data


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The benchmark's database with ten travel cases a language, and the first shopping case of each level."""
    data = write_data(tmp_path_factory.mktemp("imported"), cases=map(str, range(10)))
    for level, part in SHOPPING_PARTS.items():
        shop.write_tar(data / ARCHIVES[part], level, [("1", shop.files(level, "1"))])
    assert import_main(["import", "--data-dir", str(data), "--out", str(data / "db")]) == 0
    return data / "db"


def prepare(published, imported, *options: str):
    main(["--data-dir", str(published), "--database-dir", str(imported), *options])


def test_published_travel_is_split_and_shopping_is_for_evaluation_only(published, imported):
    prepare(published, imported)
    out = published / "agent_processed"
    train = rows_of(out, "train")
    assert Counter(row["data_source"] for row in train) == {"deepplanning_travel_en": 8, "deepplanning_travel_zh": 8}
    ids = {row["extra_info"]["problem_id"].rsplit("-", 1)[1] for row in train}
    assert len(ids) == 8  # a query and its translation are on the same side
    for language in ("en", "zh"):
        assert len(rows_of(out, f"val_travel_{language}")) == 2
    task = parse_task(train[0]["reward_model"]["ground_truth"])
    named = {"hotel_cheapest_star": ("Hotel A",), "restaurant_near": ("Diner",), "train_seat_status": ("G1",)}
    facts = BenchmarkFacts(origin="A", num_people=1, num_rooms=1)  # one room where the query says nothing
    assert task == BenchmarkTrip(num_days=2, required_names=named, facts=facts)
    carts = rows_of(out, "val_shopping")
    assert [row["extra_info"]["case_id"] for row in carts] == [f"shopping_{level}/1" for level in (1, 2, 3)]
    assert all(isinstance(parse_task(row["reward_model"]["ground_truth"]), BenchmarkCart) for row in carts)
    summary = json.loads((out / "summary.json").read_text())["sets"]
    assert summary["deepplanning_shopping_2"]["num_dropped"] == {"no_case": 1}
    assert (
        "10 constraints are of no kind that is known and are not checked"
        in summary["deepplanning_travel_en"]["notes"][0]
    )
    every = [row["extra_info"]["index"] for path in out.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len(set(every)) == len(every)


def edit(published, change):
    path = published / FOLDER / "travelplanning/data/travelplanning_query_en.json"
    queries = json.loads(path.read_text())
    change(queries)
    write_json(path, queries)


FAULTS = [
    (lambda q: q[3].pop("query"), r"travelplanning_query_en.json: row 4, column 'query': must be a text"),
    (lambda q: q[2].update(id=7), r"row 3, column 'id': must be a text"),
    (lambda q: q[1].update(meta_info=None), r"row 2, column 'meta_info': must be an object"),
    (lambda q: q[0]["meta_info"].update(days="2"), r"row 1, column 'meta_info': must have days"),
    (
        lambda q: q[0]["meta_info"]["hard_constraints"].update(train_x={"hotel_name": "Hotel A"}),
        r"hard_constraints.train_x must name an entry in outbound_train_no or inbound_train_no",
    ),
    (lambda q: q.__setitem__(4, "x"), r"row 5: must be an object"),
    (lambda q: q.clear(), r"must be a JSON array that is not empty"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS, ids=range(len(FAULTS)))
def test_a_malformed_file_is_one_line_that_names_file_row_and_column(published, imported, capsys, change, message):
    edit(published, change)
    with pytest.raises(SystemExit) as caught:
        prepare(published, imported)
    assert caught.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(message, error)
    assert not (published / "agent_processed").exists()


def test_dropped_queries_are_counted_by_reason(published, imported):
    def change(queries):
        queries[1]["query"] = queries[0]["query"]
        queries[2]["meta_info"]["hard_constraints"] = {"weather": {}}
        queries[3]["meta_info"]["hard_constraints"] = {"budget_constraint": {"max_budget": 900}}

    edit(published, change)
    prepare(published, imported)
    summary = json.loads((published / "agent_processed" / "summary.json").read_text())["sets"]
    report = summary["deepplanning_travel_en"]
    assert report["num_dropped"] == {"duplicate_query": 1, "nothing_to_check": 1}
    assert sum(report["num_written"].values()) == 8


def test_a_missing_file_or_database_names_what_to_get(published, imported, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DATABASE_DIR", raising=False)
    for arguments, message in (
        (
            ["--data-dir", str(tmp_path / "none"), "--database-dir", str(imported)],
            "no query file is there. Get them from",
        ),
        (
            ["--data-dir", str(published)],
            "--database-dir is not set: DeepPlanning's queries are answered from its own database; import it with",
        ),
        (
            ["--data-dir", str(published), "--database-dir", str(published)],
            "DeepPlanning's queries are answered from its own database; import it with",
        ),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_what_is_there_is_prepared_and_what_is_not_is_said(published, imported, capsys):
    write_json(published / QUERY_FILES["shopping_1"], [{"id": "7", "query": "of no case"}])
    for level in (2, 3):
        (published / FOLDER / f"shoppingplanning/data/level_{level}_query_meta.json").unlink()
    (published / QUERY_FILES["zh"]).unlink()
    prepare(published, imported)
    out = published / "agent_processed"
    assert {path.name for path in out.glob("*.parquet")} == {"train.parquet", "val_travel_en.parquet"}
    left_out = json.loads((out / "summary.json").read_text())["options"]["left_out"]
    assert [Path(line.split(": ")[0]).name for line in left_out] == [
        "travelplanning_query_zh.json",
        "level_2_query_meta.json",
        "level_3_query_meta.json",
        "deepplanning_shopping_1",
    ]
    printed = capsys.readouterr().out
    assert all(f"left out: {line}" in printed for line in left_out)


def test_rows_name_their_case_and_queries_without_one_are_dropped_and_counted(published, tmp_path):
    write_data(tmp_path / "small", languages=["en"], cases=map(str, range(9)))
    assert import_main(["import", "--data-dir", str(tmp_path / "small"), "--out", str(tmp_path / "db")]) == 0
    main(["--data-dir", str(published), "--database-dir", str(tmp_path / "db"),
          "--languages", "en"])  # fmt: skip
    out = published / "agent_processed"
    rows = [*rows_of(out, "train"), *rows_of(out, "val_travel_en")]
    assert {row["extra_info"]["case_id"] for row in rows} == {f"en/{number}" for number in range(9)}
    assert {row["extra_info"]["database_id"] for row in rows} == {verify_database(tmp_path / "db").database_id}
    summary = json.loads((out / "summary.json").read_text())["sets"]
    assert summary["deepplanning_travel_en"]["num_dropped"] == {"no_case": 1}
    assert "Day 1:" in rows[0]["prompt"][0]["content"]
