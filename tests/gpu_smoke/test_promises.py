"""Tests of the smoke run's promises, on rows as its runs write them."""

import pyarrow.parquet as pq
import pytest
from tests.gpu_smoke.promises import (
    PEARSON,
    promises,
    sft_promises,
    teacher_promises,
)
from tests.gpu_smoke.smoke import SPECS
from tests.remainders import write_remainders

from opd.experiment import load_spec


def _of_two_teachers(**of_last_step: float) -> list[str]:
    """The broken promises of two steps of two teachers, the last with these values."""
    of = {"large": (0.5, 300.0, 40.0), "small": (0.25, 100.0, 20.0)}
    step = {"training/global_step": 1.0, "opd/divergence": 0.4375, "opd/num_tokens": 400.0, "opd/batch_size": 60.0}
    for name, (divergence, tokens, rows) in of.items():
        key = f"opd/teacher/{name}"
        step |= {f"{key}/divergence": divergence, f"{key}/tokens": tokens, f"{key}/rows": rows}
    last = {key.replace("__", "/"): value for key, value in of_last_step.items()}
    return [promise.name for promise in teacher_promises([step, step | last], list(of)) if not promise.kept]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({}, []),
        ({"opd__teacher__small__rows": 0.0}, ["rows of large, small in every step", "their rows are all of a step's"]),
        ({"opd__batch_size": 61.0}, ["their rows are all of a step's"]),
        ({"opd__divergence": 0.44}, ["their divergences make the whole one"]),
    ],
)
def test_teachers_share_a_steps_rows(last, expected):
    assert _of_two_teachers(**last) == expected


def test_the_smoke_runs_teachers_each_have_prompts(tmp_path):
    table = pq.read_table(write_remainders(tmp_path, seed=1))
    spec = load_spec(str(SPECS["teachers"]), env={}, sets=[], overrides=[]).spec
    read_by = [spec.route.of(value) for value in table[spec.route.by].to_pylist()]
    assert set(spec.routed) == set(read_by)
    assert len(spec.routed) == 2
    assert min(read_by.count(name) for name in set(read_by)) > 1000


@pytest.mark.parametrize(
    ("last", "pearson", "expected"),
    [
        (0.5, 0.999, []),
        (0.95, 0.999, ["divergence falls below 0.9 of its start"]),
        (0.5, 0.97, ["rollout-vs-actor Pearson >= 0.98"]),
    ],
)
def test_a_distillation_lowers_its_divergence_and_both_forwards_agree(last, pearson, expected):
    rows = [
        {
            "training/global_step": number + 1.0, "rollout/failed": 0.0, "reward/failed": 0.0, "opd/skipped_step": 0.0,
            "opd/nonfinite_tokens": 0.0, "opd/divergence": value, PEARSON: pearson,
        }
        for number, value in enumerate((1.0,) * 3 + (last,) * 3)
    ]  # fmt: skip
    found = promises("toy", "opd", rows, num_steps=6)
    assert [promise.name for promise in found if not promise.kept] == expected


@pytest.mark.parametrize(("last", "expected"), [(1.5, []), (2.5, ["the validation loss falls"])])
def test_fine_tuning_is_to_lower_the_validation_loss(last, expected):
    rows = [{"val-aux/loss": 2.0}, {"training/global_step": 1.0}, {"training/global_step": 2.0, "val-aux/loss": last}]
    assert [promise.name for promise in sft_promises(rows, num_steps=2) if not promise.kept] == expected
