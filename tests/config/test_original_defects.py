"""Defects of the original that a spec can rule out; each test says how the original would fail it."""

import pytest

from opd.config import SpecError, parse_tree
from opd.config.run_config import RunFacts
from opd.config.verl import compute_overrides

RUN = RunFacts(run_id="r", run_dir="d")


def overrides_of(tree):
    return dict(line.split("=", 1) for line in compute_overrides(parse_tree(tree).spec, run=RUN))


def test_defect_1_samples_per_prompt_reach_the_rollout(minimal):
    # The original accepts rollout.n and never repeats the prompts: weighting then compares different prompts. Here the
    # number reaches verl's rollout, and weighting without a second sample is refused.
    tree = {**minimal("opd"), "rollout": {"num_samples": 4}, "opd": {"reward_beta": 1.0}}
    assert overrides_of(tree)["actor_rollout_ref.rollout.n"] == "4"
    with pytest.raises(SpecError, match="num_samples is 1"):
        parse_tree({**minimal("opd"), "opd": {"reward_beta": 1.0}})


@pytest.mark.parametrize("recipe", ["grpo", "grpo-native", "grpo-native-no-kl"])
def test_defect_6_the_default_reward_reads_what_the_default_instruction_asks_for(recipe, minimal):
    # The original asks for \\boxed{} and, for two of the recipes, leaves scoring to verl's math_dapo, which looks for
    # `Answer:`: every right answer scored as wrong.
    found = overrides_of({**minimal("grpo"), "recipe": recipe})
    assert found["++reward.custom_reward_function.reward_kwargs.function"] == "math_reward"


@pytest.mark.parametrize(
    ("variant", "function"), [("boxed", "math_reward"), ("dapo", "math_dapo"), ("none", "math_verify")]
)
def test_defect_6_an_evaluation_scores_by_its_instruction(variant, function, minimal):
    tree = {**minimal("eval"), "eval": {"instruction_variant": variant}}
    assert overrides_of(tree)["++reward.custom_reward_function.reward_kwargs.function"] == function


def test_defect_8_the_agents_rows_fit_by_default(minimal):
    # The original: 4096 + 24576 tokens against a max_length of 16384, so prompts and tool schemas were cut silently.
    assert parse_tree(minimal("opd-agent")).spec.opd.max_length == 4096 + 24576


def test_defect_8_a_max_length_that_would_cut_rows_is_refused(minimal):
    with pytest.raises(SpecError, match="would cut rows silently"):
        parse_tree({**minimal("opd-agent"), "opd": {"max_length": 16384}})


@pytest.mark.parametrize("path", ["Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B", "models/thinking", "models/no-think-instruct"])
@pytest.mark.parametrize("thinking", [True, False])
def test_defect_9_thinking_is_what_the_spec_says_for_every_model(path, thinking, minimal):
    # The original's script turns thinking off for some model names while its label still says "thinking".
    tree = {**minimal("opd"), "model": {"path": path}, "data": {"enable_thinking": thinking}}
    found = overrides_of(tree)
    assert found["++data.apply_chat_template_kwargs.enable_thinking"] == str(thinking).lower()
    assert found["actor_rollout_ref.rollout.val_kwargs.temperature"] == ("0.6" if thinking else "0.7")


def test_defect_14_the_mini_batch_reaches_the_update(minimal):
    # The original reads ppo_mini_batch_size and then updates once over the whole batch.
    tree = {**minimal("opd"), "data": {"train_batch_size": 96}, "actor": {"ppo_mini_batch_size": 32}}
    found = overrides_of(tree)
    assert found["data.train_batch_size"] == "96"
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"] == "32"
