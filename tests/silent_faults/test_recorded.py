"""Rows of real runs with injected faults, recorded by `make silent-faults`, judged by the monitor as it is now."""

import pytest

from tests.silent_faults.__main__ import RECORDED, Rows, judge, recorded, turns
from tests.silent_faults.recipes import INJECTED, NUM_SOUND, RECIPES, Recipe

NAMED_WITHIN = 3


@pytest.fixture(scope="module", params=RECIPES.values(), ids=lambda recipe: recipe.name)
def recipe(request) -> Recipe:
    return request.param


@pytest.fixture(scope="module")
def rows(recipe) -> Rows:
    return recorded(RECORDED / f"{recipe.name}.json")


def test_every_fault_is_named_within_three_steps_and_never_before_it_is_there(recipe, rows):
    found = [judge(rows, turn) for turn in turns(recipe.faults)]
    assert [one.fault for one in found if one.early] == []
    late = [
        one.fault
        for one in found
        if not one.named or (int(one.named.rpartition(" ")[2]) > NAMED_WITHIN and not INJECTED[one.fault].is_slow)
    ]
    assert late == []


def test_a_recorded_run_has_all_faults_of_its_recipe(recipe, rows):
    assert len(rows) >= turns(recipe.faults)[-1].last > NUM_SOUND
