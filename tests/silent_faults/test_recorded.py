"""Rows of real runs with injected faults, recorded by `make silent-faults`, judged by the monitor as it is now."""

from __future__ import annotations

import pytest

from tests.silent_faults.__main__ import RECORDED, Rows, judge, recorded, turns
from tests.silent_faults.recipes import INJECTED, NUM_SOUND

NAMED_WITHIN = 3
FILES = sorted(RECORDED.glob("*.json"))


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def rows(request) -> Rows:
    return recorded(request.param)


def test_every_fault_is_named_within_three_steps_and_never_before_it_is_there(rows):
    found = [judge(rows, turn) for turn in turns(list(INJECTED))]
    assert [one.fault for one in found if one.early] == []
    late = [
        one.fault
        for one in found
        if not one.named or (int(one.named.rpartition(" ")[2]) > NAMED_WITHIN and not INJECTED[one.fault].is_slow)
    ]
    assert late == []


def test_there_are_recorded_runs():
    assert FILES, "the other tests have none to judge, and are skipped"


def test_a_recorded_run_has_all_faults(rows):
    assert len(rows) >= turns(list(INJECTED))[-1].last > NUM_SOUND
