"""What `bench_plan` measures: twelve specs that are ones, of batches that divide, each with a prediction that was written down."""

import json
from pathlib import Path

from tests.benchmarks.gpu.bench_plan import CASES, ENTRIES, MODELS, PLANS, measured, off

from opd.config.parse import parse_tree


def test_every_case_is_a_spec_of_its_own_between_models_of_one_tokenizer():
    assert len({case.name for case in CASES}) == len(CASES) == 12
    for number, case in enumerate(CASES):
        spec = parse_tree(case.tree(number, Path("/models"))).spec
        assert spec.data.train_batch_size % spec.actor.ppo_mini_batch_size == 0
        assert MODELS[case.student].family == MODELS[case.teacher].family
        assert ENTRIES[MODELS[case.student].family] <= MODELS[case.student].vocab
        assert len(case.lengths()) == case.phase.rows


def test_every_case_has_a_prediction_on_file():
    assert set(json.loads(PLANS.read_text())["predicted"]) == {case.name for case in CASES}


def test_the_first_step_counts_for_the_memory_alone_and_a_prediction_is_off_by_its_share_of_what_was_measured():
    rows = [
        {"step": step, "timing/step_s": seconds, "timing_s/gen": seconds / 2, "perf/max_memory_allocated_gb": 10.0 - step}
        for step, seconds in ((1, 50.0), (2, 4.0), (3, 6.0))
    ]  # fmt: skip
    seen = measured(rows)
    assert seen == {"step_s": 5.0, "parts_s": {"rollout": 2.5}, "allocated_gib": 9.0, "steps": 2}
    assert off({"step_s": 6.0, "allocated_gib": 9.0}, seen) == {"step_s": 6.0 / 5.0 - 1, "allocated_gib": 0.0}
