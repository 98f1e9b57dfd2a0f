"""Preparation of the published queries: their layout, drops by reason, cases of the imported database."""

import json
import re
from collections import Counter

import pyarrow.parquet as pq
import pytest
from tests.opd_envs.deepplanning.published import write_data

from opd_envs.deepplanning.database import verify_database
from opd_envs.deepplanning.layout import QUERY_FILES
from opd_envs.deepplanning.make_database import main as import_main
from opd_envs.deepplanning.prepare import main
from opd_envs.deepplanning.task import BenchmarkTrip, parse_task


def rows_of(folder, name: str):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def query(number: int, language: str, **constraints):
    """Return a travel query in the published layout."""
    meta = {"org": "A", "dest": ["B"], "days": 2, "people_number": 1, "hard_constraints": constraints}
    text = f"{language} query {number}"
    return {"id": str(number), "query": text, "meta_info": meta, "query_with_constraints": text}


HOTEL = {"constraint_type": "superlative_cheapest_star", "hotel_name": "Hotel A", "hotel_star": 3, "hotel_price": 9.0}
NEARBY = {"constraint_type": "superlative_x", "attraction_name": "Not to be visited", "restaurant_name": "Diner"}
SEATS = {"constraint_context": "any train with seats", "outbound_train_no": "G1", "people_number": 3}


@pytest.fixture
def published(tmp_path):
    """Return a data folder with ten queries a language."""
    data = tmp_path / "data"
    for language, file in QUERY_FILES.items():
        queries = [
            query(n, language, hotel_cheapest_star=HOTEL, restaurant_near=NEARBY, train_seat_status=SEATS, weather={})
            for n in range(10)
        ]
        (data / file).parent.mkdir(parents=True, exist_ok=True)
        (data / file).write_text(json.dumps(queries))
    return data


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Return the benchmark's database with nine cases a language."""
    data = write_data(tmp_path_factory.mktemp("imported"), cases=map(str, range(9)))
    import_main(["--data-dir", str(data), "--out", str(data / "db")])
    return data / "db"


def prepare(published, imported, *options: str):
    main(["--data-dir", str(published), "--database-dir", str(imported), *options])


def summary_of(published):
    return json.loads((published / "agent_processed" / "summary.json").read_text())


def test_queries_are_split_by_id_and_name_their_case(published, imported):
    prepare(published, imported)
    out = published / "agent_processed"
    train, val = rows_of(out, "train"), [*rows_of(out, "val_travel_en"), *rows_of(out, "val_travel_zh")]
    ids = {row["extra_info"]["problem_id"].rsplit("-", 1)[1] for row in train}
    counts = Counter(row["data_source"] for row in train)
    assert set(counts.values()) == {len(ids)}  # a query and its translation are on the same side
    assert len(train) + len(val) == 18
    assert {row["extra_info"]["case_id"] for row in train + val} == {
        f"{language}/{number}" for language in ("en", "zh") for number in range(9)
    }
    assert {row["extra_info"]["database_id"] for row in train} == {verify_database(imported).database_id}
    assert len({row["extra_info"]["index"] for row in train + val}) == 18
    assert "Day 1:" in train[0]["prompt"][0]["content"]
    task = parse_task(train[0]["reward_model"]["ground_truth"])
    named = {"hotel_cheapest_star": ("Hotel A",), "restaurant_near": ("Diner",), "train_seat_status": ("G1",)}
    assert task == BenchmarkTrip(origin="A", num_days=2, required_names=named)
    report = summary_of(published)["sets"]["deepplanning_travel_en"]
    assert report["num_dropped"] == {"no_case": 1}
    assert report["notes"] == ["constraints of an unknown kind are not checked: {'weather': 10}"]


def edit(published, change):
    path = published / QUERY_FILES["en"]
    queries = json.loads(path.read_text())
    change(queries)
    path.write_text(json.dumps(queries))


def constraints_of(queries, number):
    return queries[number]["meta_info"]["hard_constraints"]


FAULTS = [
    (lambda q: q[3].pop("query"), r"travelplanning_query_en.json: row 4, column 'query': must be a text"),
    (lambda q: q[2].update(id=7), r"row 3, column 'id': must be a text"),
    (lambda q: q[1].update(meta_info=None), r"row 2, column 'meta_info': must be an object"),
    (
        lambda q: q[0]["meta_info"].update(days="x"),
        r"row 1, column 'meta_info': must have org \(a text\), whole numbers",
    ),
    (
        lambda q: constraints_of(q, 0).update(budget_constraint={}),
        r"row 1, .* a number max_budget in budget_constraint",
    ),
    (
        lambda q: constraints_of(q, 0).update(train_x={"hotel_name": "Hotel A"}),
        r"hard_constraints.train_x must name an entry in outbound_train_no or inbound_train_no",
    ),
    (lambda q: q.__setitem__(4, "x"), r"must be a JSON array of objects"),
    (lambda q: q.clear(), r"must be a JSON array of objects that is not empty"),
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
    prepare(published, imported, "--languages", "en")
    summary = summary_of(published)["sets"]
    assert summary["deepplanning_travel_en"]["num_dropped"] == {"no_case": 1, "nothing_to_check": 1}
    filtered = summary["all, filtered"]["num_dropped"]
    assert sum(filtered.values()) == 1  # the same query twice, within a file or in both


def test_a_missing_file_or_database_names_what_to_get(published, imported, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DATABASE_DIR", raising=False)
    own = "DeepPlanning's queries are answered from its own database; import it with"
    for data, database, message in (
        (tmp_path / "none", [imported], "no query file is there. Get them from"),
        (published, [], f"--database-dir is not set: {own}"),
        (published, [published], own),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["--data-dir", str(data), *(f"--database-dir={folder}" for folder in database)])
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_a_language_without_its_file_or_cases_is_left_out_by_name(published, imported, tmp_path, capsys):
    (published / QUERY_FILES["zh"]).unlink()
    prepare(published, imported)
    names = {path.name for path in (published / "agent_processed").glob("*.parquet")}
    assert names == {"train.parquet", "val_travel_en.parquet"}
    (left_out,) = summary_of(published)["options"]["left_out"]
    assert left_out.endswith("travelplanning_query_zh.json: no such file")
    assert f"left out: {left_out}" in capsys.readouterr().out
    edit(published, lambda queries: [item.update(id=f"x{item['id']}") for item in queries])
    with pytest.raises(SystemExit):
        prepare(published, imported)
    assert "none of its queries can be used (no_case 10)" in capsys.readouterr().err
