"""The benchmark's scores on generated cases: a solution scores 1, a planted fault costs exactly its rule and its dimension."""

import pyarrow.parquet as pq
import pytest
from tests.opd_envs.deepplanning.planned import FAULTS, RULES, World, as_json, as_report, write_worlds

from opd.rewards import compute_score as compute_score_in_pool
from opd_envs.deepplanning.__main__ import main as import_main
from opd_envs.deepplanning.prepare import main as prepare
from opd_envs.deepplanning.reward import compute_score
from opd_envs.deepplanning.scoring.judge import DIMENSIONS
from opd_envs.travel.database import ManifestError
from opd_envs.travel.make_database import write_database

PATIENCE_S = 60.0
NUM_CASES = 100
"""Of each language."""
NUMBERS = ("delivery_rate", "commonsense_score", "personalized_score", "composite_score", "case_acc")


@pytest.fixture(scope="module")
def worlds():
    return [World(language, number) for language in ("en", "zh") for number in range(NUM_CASES)]


@pytest.fixture(scope="module")
def database(worlds, tmp_path_factory):
    data = write_worlds(tmp_path_factory.mktemp("planned"), worlds)
    assert import_main(["import", "--data-dir", str(data), "--out", str(data / "db")]) == 0
    prepare(["--data-dir", str(data), "--database-dir", str(data / "db")])
    return data / "db"


@pytest.fixture(scope="module")
def rows(database):
    tables = [pq.read_table(path).to_pylist() for path in (database.parent / "agent_processed").glob("*.parquet")]
    return {row["extra_info"]["case_id"]: row for table in tables for row in table}


@pytest.fixture
def score(database, rows):
    def of(world: World, text: str):
        row = rows[f"{world.language}/{world.case}"]
        return compute_score(
            row["data_source"], text, row["reward_model"]["ground_truth"], row["extra_info"], database_dir=str(database)
        )

    return of


def failed(row) -> set[str]:
    return {name for name, value in row.items() if name.startswith(("commonsense_", "hard_")) and value == 0.0}


@pytest.mark.slow
def test_every_solution_scores_one_as_report_and_as_json(worlds, score):
    for world in worlds:
        for text in (as_report(world, world.plan()), as_json(world.plan())):
            row = score(world, f"Let me think. {text} Done.")
            assert failed(row) == set()
            assert all(value == 1.0 for name, value in row.items() if name != "pred")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_costs_exactly_its_rule_and_its_dimension(worlds, score, fault):
    name = "hard_{}_cheapest_direct" if fault == "hard_ride" else fault
    for world in worlds[FAULTS.index(fault) :: len(FAULTS)]:
        row = score(world, as_report(world, world.plan(fault)))
        rule = name.format(world.mode)
        assert failed(row) - {"commonsense_score"} == {rule}
        broken = {
            dimension
            for dimension, rules in DIMENSIONS.items()
            if rule.removeprefix("commonsense_") in {r.__name__ for r in rules}
        }
        assert {dimension for dimension in DIMENSIONS if row[f"dimension_{dimension}"] == 0.0} == broken
        commonsense, personalized = (0.875, 1.0) if fault in RULES else (1.0, 0.0)
        assert [row[number] for number in NUMBERS] == [
            1.0, commonsense, personalized, (commonsense + personalized) / 2, 0.0
        ]  # fmt: skip
        assert row["score"] == row["composite_score"]
        assert row["acc"] == row["case_acc"]


def test_faults_add_up_over_dimensions(worlds, score):
    world = worlds[0]
    plan = world.plan("commonsense_cost_calculation_correctness")
    plan["daily_plans"][2]["current_city"] = world.w["via"]
    row = score(world, as_json(plan))
    assert (row["commonsense_score"], row["composite_score"]) == (0.75, 0.875)


def test_what_is_no_plan_scores_nothing_with_every_entry_there(worlds, score):
    world = worlds[0]
    every = set(score(world, as_json(world.plan())))
    for text in ("no plan", "<plan>soon</plan>", "<plan>{}</plan>", "<plan>" + "9" * 50_000 + "</plan>"):
        row = score(world, text)
        assert set(row) == every
        assert not any(value for name, value in row.items() if name != "pred")


def test_an_empty_plan_keeps_the_benchmarks_score_and_earns_nothing(worlds, score):
    world = worlds[0]
    days = "".join(f"Day {day}:\nCurrent City: {world.w['goal']}\n" for day in range(1, world.num_days + 1))
    row = score(world, f"<plan>{days}Total Estimated Budget: 0</plan>")
    assert row["commonsense_score"] == 6 / 8  # nothing is late, closed, too short, dear or there twice
    assert row["composite_score"] == 0.375
    assert row["score"] == row["acc"] == 0.0


def test_a_database_of_another_kind_or_make_is_refused_not_scored(worlds, rows, database, tmp_path):
    row = rows[f"{worlds[0].language}/{worlds[0].case}"]

    def scored(folder, **info):
        extra = row["extra_info"] | info
        return compute_score("x", "", row["reward_model"]["ground_truth"], extra, database_dir=str(folder))

    with pytest.raises(ManifestError, match="this task was made for other"):
        scored(database, database_id="other")
    with pytest.raises(KeyError, match=r"extra_info.case_id = en/x: the database has no such case"):
        scored(database, case_id="en/x")
    write_database(tmp_path / "own", seed=1, num_cities=4)
    with pytest.raises(ManifestError, match="kind"):
        scored(tmp_path / "own")


@pytest.mark.slow
def test_it_runs_in_the_killable_scorer_pool_and_its_prompt_asks_for_the_report(worlds, rows, database):
    world = worlds[-1]
    row = rows[f"{world.language}/{world.case}"]
    options = {
        "function": "opd.agent.reward:compute_score",
        "timeout_s": PATIENCE_S,
        "database_dir": str(database),
        "toolset": "deepplanning-en",
    }
    scored = compute_score_in_pool(
        "x", as_report(world, world.plan()), row["reward_model"]["ground_truth"], row["extra_info"], **options
    )
    assert (scored["score"], scored["case_acc"], scored["failed"]) == (1.0, 1.0, 0)
    assert "HH:MM-HH:MM | travel_intercity_public | train" in row["prompt"][0]["content"]
