"""What `bench_schedules` runs and what it says of it; the runs themselves need a GPU."""

import json

import pytest
from tests.benchmarks.gpu.bench_host import PHASE
from tests.benchmarks.gpu.bench_schedules import CARRY_STEPS, FULL_LENGTHS, Run, report, runs
from tests.benchmarks.gpu.bench_step import parser_of_arguments, spec_of

from opd.config.load import load_spec
from opd.rollout.carry import ROUNDS_OF_LONGEST


@pytest.mark.parametrize("run", runs(), ids=lambda run: run.name)
def test_every_run_is_a_spec(run: Run, tmp_path):
    arguments = parser_of_arguments().parse_args(run.arguments)
    (tmp_path / "run.yaml").write_text(json.dumps(spec_of(arguments, "run", tmp_path)))
    spec = load_spec(str(tmp_path / "run.yaml"), env={}, sets=arguments.set, overrides=[]).spec
    assert spec.rollout.schedule == ("carry" if run.name.startswith("carry") else "strict")
    assert arguments.phases == [PHASE]


def test_carry_runs_over_enough_rounds_at_what_an_update_was_seen_to_take():
    assert CARRY_STEPS * 0.9 >= FULL_LENGTHS * ROUNDS_OF_LONGEST


def test_the_report_sets_speeds_beside_both_stricts_and_says_where_a_run_is_short():
    def run(steps: int, speed: float, **more: float) -> dict:
        parts = {"rollout": 4.0, "teacher": 2.2, "student": 2.8, "step": 10.0, "gpu_busy": 0.7}
        return {"phases": {PHASE: {"without": {"steps": steps, "trained_tokens_per_s_in_all": speed, **parts, **more}}}}

    known = {
        "strict": run(11, 5000.0),
        "strict, mp": run(11, 5500.0),
        "carry": run(55, 8800.0, **{"rollout/rounds": 0.9}),
        "carry, again": run(40, 8250.0, **{"rollout/rounds": 0.9}),
    }
    assert list(report(known)) == [
        "|  | steps | rollout | teacher | student | weight sync | step | trained tokens/s | of strict | of strict, mp | GPU busy | full lengths |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| strict | 11 | 4.00 | 2.20 | 2.80 |  | 10.00 | 5,000 |  | 0.91 | 70% |  |",
        "| strict, mp | 11 | 4.00 | 2.20 | 2.80 |  | 10.00 | 5,500 | 1.10 |  | 70% |  |",
        "| carry | 55 | 4.00 | 2.20 | 2.80 |  | 10.00 | 8,800 | 1.76 | 1.60 | 70% | 3.09 |",
        "| carry, again | 40 | 4.00 | 2.20 | 2.80 |  | 10.00 | 8,250 | 1.65 | 1.50 | 70% | 2.25 (fewer than 3) |",
    ]
