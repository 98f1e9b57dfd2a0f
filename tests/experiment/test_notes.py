"""Remarks on what a spec may say but probably does not mean."""

import pytest
from tests.experiment.broken_rules import SEVERAL
from tests.experiment.trees import tree_of

from opd.experiment import parse_tree

SAMPLED = {"data.train_batch_size": 64, "actor.ppo_mini_batch_size": 64, "opd.loss_type": "sampled_reverse_kl",
           "device": "cpu"}  # fmt: skip
CARRY = {"rollout.schedule": "carry", "data.train_batch_size": 64}
MICRO = {"actor.ppo_micro_batch_size_per_gpu": 2}


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("opd", {}, ""),
        ("opd", {"reward.function": "math_dapo"}, "use math_reward or math_verify"),
        ("eval", {"eval.instruction_variant": "dapo", "reward.function": "math_reward"}, "use math_dapo"),
        ("opd", SEVERAL | {"route.to": {"x": "a"}}, "teachers.b: no value in route.to"),
        ("opd", CARRY | {"rollout.in_flight": 512, "trainer.gpus_per_node": 1}, "set it to 512,"),
        ("opd", CARRY | {"rollout.in_flight": 512, "trainer.gpus_per_node": 2}, ""),
        ("opd", CARRY | {"rollout.in_flight": 1028, "trainer.gpus_per_node": 4}, "set it to 257,"),
        ("opd", SAMPLED, ""),
        ("opd", SAMPLED | {"rollout.top_p": 0.8}, "sampled_reverse_kl: its mean"),
        ("opd", SAMPLED | {"actor.ppo_epochs": 2}, "sampled_reverse_kl: its mean"),
        ("opd", MICRO, ""),
        ("opd", MICRO | {"actor.use_dynamic_bsz": True}, "cut by tokens"),
        ("opd", MICRO | {"opd.train_tokens": 4096}, "opd.train_tokens"),
        ("opd", {"actor.ppo_max_token_len_per_gpu": 30000, "actor.use_dynamic_bsz": False}, "cut by rows"),
        ("opd", {"store": {"url": "out", "region": "here"}}, "for S3 only"),
    ],
)
def test_what_is_probably_not_meant_is_remarked_and_nothing_else(kind, changes, words, minimal):
    notes = parse_tree(tree_of(minimal, kind, **changes)).notes
    assert [words in note for note in notes] == ([True] if words else [])
