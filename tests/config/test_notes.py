"""What a spec may say but probably does not mean is told, and nothing else."""

import pytest
from tests.config.broken_rules import SEVERAL
from tests.config.trees import tree_of

from opd.config import parse_tree


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("opd", {"reward.function": "math_dapo"}, "use math_reward or math_verify"),
        ("eval", {"eval.instruction_variant": "dapo", "reward.function": "math_reward"}, "use math_dapo"),
    ],
)
def test_a_reward_that_cannot_match_the_instruction_is_remarked(kind, changes, words, minimal):
    notes = parse_tree(tree_of(minimal, kind, **changes)).notes
    assert len(notes) == 1
    assert words in notes[0]


def test_a_teacher_that_no_value_leads_to_is_remarked(minimal):
    (note,) = parse_tree(tree_of(minimal, "opd", **(SEVERAL | {"route.to": {"x": "a"}}))).notes
    assert note.startswith("teachers.b: no value in route.to")


@pytest.mark.parametrize(
    ("gpus", "in_flight", "mend"), [(1, 512, 512), (2, 512, None), (4, 1028, 257), (4, 1024, None)]
)
def test_more_responses_in_flight_than_the_servers_decode_at_once_are_remarked(gpus, in_flight, mend, minimal):
    changes = {"rollout.schedule": "carry", "rollout.in_flight": in_flight, "trainer.gpus_per_node": gpus}
    notes = parse_tree(tree_of(minimal, "opd", **{"data.train_batch_size": 64}, **changes)).notes
    found = [note for note in notes if note.startswith("rollout.max_num_seqs 256")]
    assert [f"set it to {mend}," in note for note in found] == ([] if mend is None else [True])


@pytest.mark.parametrize(
    ("opd", "words"),
    [
        ({"policy": {"weight": 0.5}}, "no policy gradient"),
        ({"stages": [{"loss_type": "sampled_reverse_kl"}]}, "no sampled_reverse_kl"),
    ],
)
def test_a_loss_without_cuda_kernels_is_told_and_on_a_cpu_it_is_not(minimal, opd, words):
    for device, num in (("cuda", 1), ("cpu", 0)):
        notes = parse_tree(tree_of(minimal, "opd", device=device, opd=opd, rollout__num_samples=2)).notes
        assert sum("fused CUDA kernels" in note and words in note for note in notes) == num


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [({}, False), ({"rollout.top_p": 0.8}, True), ({"actor.ppo_epochs": 2}, True)],
    ids=["plain", "truncated sampling", "several updates"],
)
def test_a_sampled_divergence_that_does_not_estimate_the_reverse_kl_is_noted(minimal, changes, is_told):
    batch = {"data.train_batch_size": 64, "actor.ppo_mini_batch_size": 64, "opd.loss_type": "sampled_reverse_kl"}
    loaded = parse_tree(tree_of(minimal, "opd", **batch, **changes))
    assert any("sampled_reverse_kl: its mean" in note for note in loaded.notes) is is_told


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ({}, ""),
        ({"actor.ppo_micro_batch_size_per_gpu": 2}, ""),
        ({"actor.ppo_micro_batch_size_per_gpu": 2, "actor.use_dynamic_bsz": True}, "cut by tokens"),
        ({"actor.ppo_micro_batch_size_per_gpu": 2, "opd.train_tokens": 4096}, "opd.train_tokens"),
        ({"actor.ppo_max_token_len_per_gpu": 30000, "actor.use_dynamic_bsz": False}, "cut by rows"),
    ],
)
def test_a_size_of_a_micro_batch_that_is_not_read_is_noted(minimal, changes, noted):
    found = parse_tree(tree_of(minimal, "opd", **changes)).notes
    assert [noted in note for note in found] == ([True] if noted else [])
