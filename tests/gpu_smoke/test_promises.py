"""Tests of the smoke run's promises, on rows as its runs write them."""

import pyarrow.parquet as pq
import pytest
from tests.gpu_smoke.promises import PEARSON, promises
from tests.gpu_smoke.smoke import SPECS
from tests.remainders import write_remainders

from opd.experiment import load_spec


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
