"""The benchmark's scores over an imported case: no plan, an empty plan, a foreign database, the killable pool."""

import json

import pytest
from tests.opd_envs.deepplanning.published import WORDS

from opd.rewards import compute_score as compute_score_in_pool
from opd_envs.database_folder import ManifestError
from opd_envs.deepplanning.reward import compute_score
from opd_envs.deepplanning.task import BenchmarkTrip
from opd_envs.travel.make_database import write_database
from opd_envs.travel.task import task_text

TASK = task_text(BenchmarkTrip(origin="A", num_days=1, required_names={"hotel": (WORDS["en"]["inn"],)}))
INFO = {"case_id": "en/1"}


def plan_at(hotel: str) -> str:
    meal = {"time_slot": "12:00-13:00", "type": "meal", "details": {"name": "x", "cost": 1}}
    day = {"current_city": "x", "accommodation": {"name": hotel, "price_per_night": 301}, "activities": [meal]}
    return f"<plan>{json.dumps({'daily_plans': [day], 'budget_summary': {'total_estimated_budget': 302}})}</plan>"


def test_what_is_no_plan_scores_nothing_with_every_entry_there(imported):
    every = set(compute_score("x", plan_at("x"), TASK, INFO, database_dir=str(imported)))
    for text in ("no plan", "<plan>soon</plan>", "<plan>{}</plan>", "<plan>" + "9" * 50_000 + "</plan>"):
        row = compute_score("x", text, TASK, INFO, database_dir=str(imported))
        assert set(row) == every
        assert not any(value for name, value in row.items() if name != "pred")


def test_a_demand_holds_for_the_entry_that_the_query_asks_for_and_no_other(imported):
    found = [
        compute_score("x", plan_at(hotel), TASK, INFO, database_dir=str(imported))["hard_hotel"]
        for hotel in (WORDS["en"]["inn"], "another inn")
    ]
    assert found == [1.0, 0.0]


def test_a_database_of_another_kind_or_make_is_refused_not_scored(imported, tmp_path):
    write_database(tmp_path / "travel", seed=1, num_cities=5)
    for folder, info in ((tmp_path / "travel", INFO), (imported, INFO | {"database_id": "other"})):
        with pytest.raises(ManifestError):
            compute_score("x", plan_at("x"), TASK, info, database_dir=str(folder))


@pytest.mark.slow
def test_it_runs_in_the_killable_scorer_pool(imported):
    options = {"function": "opd.agent.environments:compute_score", "timeout_s": 60.0, "toolset": "deepplanning-en"}
    here = compute_score("x", plan_at("x"), TASK, INFO, database_dir=str(imported))
    there = compute_score_in_pool("x", plan_at("x"), TASK, INFO, database_dir=str(imported), **options)
    assert there == here | {"failed": 0}
