"""`opdctl top`: pace, memory, and where the time of the newest steps goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from opdctl.report.use import NUM_STEPS

STEP = {
    "timing/step_s": 10.0, "timing_s/gen": 6.0, "timing_s/update_actor": 3.0, "timing/teacher_s": 1.0, "timing/student_s": 2.0,
    "perf/throughput": 1500.0, "perf/max_memory_allocated_gb": 61.5,
}  # fmt: skip


def test_the_newest_steps_are_told_by_their_parts_which_add_up_to_the_whole(
    inside: Callable, make_run: Callable, store: Path
) -> None:
    slow = {**STEP, "timing/step_s": 1000.0}  # the first steps of a run compile and warm up
    make_run("r", attempts=[{step: slow if step <= 5 else STEP for step in range(1, NUM_STEPS + 6)}])
    [told] = json.loads(inside("top", "r", "--store", store, "-o", "json").stdout)["runs"]
    assert told["step_s"] == pytest.approx(10.0)
    assert told["parts"] == pytest.approx({"rollout": 60.0, "teacher": 10.0, "student": 20.0, "rest": 10.0})
    assert (told["tokens_per_gpu_s"], told["memory_gib"], told["gpus"]) == (1500.0, 61.5, None)
    table = inside("top", "r", "--store", store).stdout
    assert table.index("rollout %") < table.index("teacher %") < table.index("rest %")
    assert "reference" not in table


def test_memory_is_told_under_verl_s_name_too(inside: Callable, make_run: Callable, store: Path) -> None:
    make_run("r", attempts=[{1: {"timing_s/step": 10.0, "actor/perf/max_memory_allocated_gb": 43.5}}])
    [told] = json.loads(inside("top", "r", "--store", store, "-o", "json").stdout)["runs"]
    assert told["memory_gib"] == 43.5


def test_runs_that_have_ended_are_shown_where_they_are_named_only(
    inside: Callable, make_run: Callable, store: Path
) -> None:
    make_run("r", attempts=[{1: STEP}], result={"steps": 1})
    done = inside("top", "--store", store)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no run is running here" in done.stderr
    assert "rollout %" in inside("top", "r", "--store", store).stdout


@pytest.mark.parametrize("width", [40, 80])
def test_a_run_that_has_measured_nothing_and_a_narrow_screen_are_no_trouble(
    inside: Callable, make_run: Callable, store: Path, width: int
) -> None:
    make_run("measured", attempts=[{1: STEP}])
    make_run("new", attempts=[{}])
    done = inside("top", "measured", "new", "--store", store, COLUMNS=str(width))
    assert done.returncode == 0
    assert "new" in done.stdout
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= width
