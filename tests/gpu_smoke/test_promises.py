"""Tests of the smoke run's promises, on rows as its runs write them."""

import pyarrow.parquet as pq
import pytest
from tests.gpu_smoke.promises import PEARSON, promises
from tests.gpu_smoke.smoke import LM, SPECS
from tests.remainders import write_remainders

from opd.experiment import load_spec
from opd.experiment.pipeline import stages_of


def test_the_smoke_runs_teachers_each_have_prompts(tmp_path):
    table = pq.read_table(write_remainders(tmp_path, seed=1))
    spec = load_spec(str(SPECS["teachers"]), env={}, sets=[], overrides=[]).spec
    read_by = [spec.route.of(value) for value in table[spec.route.by].to_pylist()]
    assert set(spec.routed) == set(read_by)
    assert len(spec.routed) == 2
    assert min(read_by.count(name) for name in set(read_by)) > 1000


def test_the_pipeline_on_smollm2_has_each_kind_but_the_one_with_tools_and_takes_few_steps():
    stages = stages_of(load_spec(str(SPECS["lm"]), env={}, sets=list(LM), overrides=[]).spec)
    assert {stage.spec.kind for stage in stages} == {"sft", "grpo", "passrate", "opd", "eval", "convert"}
    assert max(getattr(stage.spec.trainer, "total_steps", 0) for stage in stages if stage.spec.kind != "convert") == 40


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
