"""The divergence, the policy gradient beside it, and their weights."""

from __future__ import annotations

from opd.config.defaults import DISTILS
from opd.config.rule import Rule
from opd.config.rules.run_and_stages import of_each_stage, where_loss_is, where_rewarded

_STAGE_POLICY = "(opd.policy.weight if item.policy_weight is None else item.policy_weight)"
_STAGE_DIVERGENCE = "(opd.divergence_weight if item.divergence_weight is None else item.divergence_weight)"
_STAGE_LOSS = "(opd.loss_type if item.loss_type is None else item.loss_type)"

LOSS = (
    Rule(
        key="opd.max_length",
        when="opd.max_length is not None and opd.max_length < row_length",
        rule="it must hold max_prompt_length + max_response_length = {row_length}: a smaller value would cut rows silently",
        fix="use {row_length}, or remove the key",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.beta",
        when='opd.loss_type == "jsd" and opd.beta is not None and not 0 < opd.beta < 1',
        rule="jsd needs 0 < beta < 1",
        fix="use 0.5, or remove the key",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.beta",
        when='opd.loss_type != "jsd" and opd.beta is not None',
        rule="beta weighs the mixture of jsd; loss_type {opd.loss_type} has none",
        fix="remove opd.beta, or set opd.loss_type: jsd",
        kinds=DISTILS,
    ),
    *where_loss_is(
        '("topk_reverse_kl",)',
        "opd.top_k is None",
        rule="the teacher's tokens that it compares one by one need a number",
        fix="set opd.top_k: 64, or use reverse_kl, which compares all",
    ),
    Rule(
        key="opd.top_k",
        when='opd.top_k is not None and opd.loss_type != "topk_reverse_kl" and len(opd.stages) == 0',
        rule="it belongs to loss_type topk_reverse_kl; loss_type {opd.loss_type} compares all tokens",
        fix="remove the key, or set opd.loss_type: topk_reverse_kl",
        kinds=DISTILS,
    ),
    *where_rewarded(
        "num_samples == 1",
        rule="advantages compare the samples of one prompt, and rollout.num_samples is 1",
        fix="set rollout.num_samples to 2 or more, or the weight to 0",
    ),
    *where_rewarded(
        'opd.horizon.applies == "generate"',
        rule="answers that end at the horizon (opd.horizon.applies: generate) are not whole, so that their scores mean nothing",
        fix="use opd.horizon.applies: train, or set the weight to 0",
    ),
    Rule(
        key="opd.divergence_weight",
        when="len(opd.stages) == 0 and opd.divergence_weight == 0 and opd.policy.weight == 0",
        rule="both parts of the loss have weight 0, so that nothing is learnt",
        fix="set opd.divergence_weight: 1, or opd.policy.weight above 0",
        kinds=DISTILS,
    ),
    of_each_stage(
        "divergence_weight",
        f"{_STAGE_DIVERGENCE} == 0 and {_STAGE_POLICY} == 0",
        rule="both parts of the stage's loss have weight 0",
        fix="give the stage a divergence_weight or a policy_weight above 0",
    ),
    of_each_stage(
        "rollouts",
        f'item.rollouts == "teacher" and ({_STAGE_POLICY} > 0 or item.weight_schedule == "linear")',
        rule="a policy gradient is of answers that the student has sampled",
        fix="use rollouts: student, or policy_weight: 0 and weight_schedule: constant",
    ),
    of_each_stage(
        "rollouts",
        f'item.rollouts == "teacher" and {_STAGE_LOSS} == "sampled_reverse_kl"',
        rule="the log ratio of a sampled token estimates the reverse KL where the student has sampled it",
        fix="use rollouts: student, or loss_type: reverse_kl",
    ),
)
