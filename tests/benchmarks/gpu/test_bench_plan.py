"""What `bench_plan` measures: fifteen specs that are ones, of batches that divide, each with a prediction that was written down."""

import json
from pathlib import Path

import pytest
from tests.benchmarks.gpu.bench_plan import (
    CASES,
    ENTRIES,
    MODELS,
    PLANS,
    QUESTION_TOKENS,
    TEMPLATE_TOKENS,
    measured,
    off,
)
from tests.gpu_smoke.assets import widened_tokenizer
from transformers import AutoTokenizer

from opd.config.parse import parse_tree
from opd.data.toy.task import make_row, split_problems


def test_every_case_is_a_spec_of_its_own_between_models_of_one_tokenizer():
    assert len({case.name for case in CASES}) == len(CASES) == 15
    for number, case in enumerate(CASES):
        spec = parse_tree(case.tree(number, Path("/models"))).spec
        assert spec.data.train_batch_size % spec.actor.ppo_mini_batch_size == 0
        assert MODELS[case.student].family == MODELS[case.teacher].family
        assert ENTRIES[MODELS[case.student].family] <= MODELS[case.student].vocab
        assert len(case.lengths()) == case.phase.rows


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen2.5-1.5B", "Llama-3.2-1B"])
def test_a_familys_tokenizer_is_read_back_with_its_newline_and_as_many_tokens_of_a_prompt(name, tmp_path):
    config = MODELS[name].config()
    config.save_pretrained(tmp_path)
    widened_tokenizer(200).save_pretrained(tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    # verl refuses a Qwen model without it.
    assert len(read.encode("\n", add_special_tokens=False)) == 1
    [message] = make_row(split_problems().train[0], "train")["prompt"]
    prompt = read.apply_chat_template([message], add_generation_prompt=True, return_dict=False)
    assert len(prompt) == TEMPLATE_TOKENS + QUESTION_TOKENS


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
