"""The benchmark's scores over an imported case: no plan, an empty plan, a foreign database."""

import json

import pytest
from tests.opd_envs.deepplanning.published import WORDS

from opd_envs.database_folder import ManifestError
from opd_envs.deepplanning.reward import compute_score
from opd_envs.deepplanning.task import BenchmarkTrip
from opd_envs.scoring import TaskError, task_text

INN = WORDS["en"]["inn"]
TASK = task_text(BenchmarkTrip(origin="A", num_days=1, required_names={"hotel": (INN,)}))
INFO = {"case_id": "en/1"}


def plan_at(hotel: str) -> str:
    meal = {"time_slot": "12:00-13:00", "type": "meal", "details": {"name": "x", "cost": 1}}
    day = {"current_city": "x", "accommodation": {"name": hotel, "price_per_night": 301}, "activities": [meal]}
    return f"<plan>{json.dumps({'daily_plans': [day], 'budget_summary': {'total_estimated_budget': 302}})}</plan>"


def score(folder, text, *, task=TASK, info=INFO):
    return compute_score("x", text, task, info, database_dir=str(folder))


def test_a_demand_holds_for_its_entry_alone_and_no_plan_scores_nothing_with_every_entry_there(imported):
    assert [score(imported, plan_at(hotel))["hard_hotel"] for hotel in (INN, "another inn")] == [1.0, 0.0]
    for text in ("no plan", "<plan>soon</plan>", "<plan>{}</plan>", "<plan>" + "9" * 50_000 + "</plan>"):
        row = score(imported, text)
        assert set(row) == set(score(imported, plan_at("x")))
        assert not any(value for name, value in row.items() if name != "pred")


def test_a_database_of_another_make_and_a_text_that_is_no_task_are_rejected_not_scored(imported):
    with pytest.raises(ManifestError):
        score(imported, plan_at("x"), info=INFO | {"database_id": "other"})
    with pytest.raises(TaskError, match="names: Extra inputs are not permitted"):
        score(imported, plan_at("x"), task=TASK.replace('"required_names"', '"names"'))
