"""Stages of a run, the horizon of its responses, and weights by their rewards."""

from __future__ import annotations

from opd.config.defaults import DISTILS
from opd.config.rule import Rule
from opd.config.rules.run_and_stages import of_each_stage

STAGES = (
    of_each_stage(
        "until",
        "item.until is None and index + 1 < len(opd.stages)",
        rule="a stage that another follows has an end",
        fix="give its last step, or below 1 the share of the run's steps: until: 0.5",
    ),
    of_each_stage(
        "until",
        "item.until is not None and index + 1 >= len(opd.stages)",
        rule="the last stage ends with the run",
        fix="remove the key, or add the stage that follows",
    ),
    of_each_stage(
        "beta",
        '(item.beta is not None) != (item.loss_type == "jsd")',
        rule="beta weighs the mixture of the stage's own loss_type jsd, and is given with it",
        fix="set beta: 0.5 with loss_type: jsd, and none with another",
    ),
    of_each_stage(
        "rollouts",
        'item.rollouts == "teacher" and opd.teacher_answers is None',
        rule="the teacher's answers are read from files, nothing samples them in the run",
        fix="set opd.teacher_answers to eval/generations.parquet of an evaluation of the teacher on data.train",
        kinds=("opd",),
    ),
    of_each_stage(
        "rollouts",
        'item.rollouts == "teacher"',
        rule="a file of answers holds no conversations with tools",
        fix="use rollouts: student, or kind: opd",
        kinds=("opd-agent",),
    ),
    Rule(
        key="opd.horizon.applies",
        when='opd.horizon.applies == "generate"',
        rule="a conversation with tools has a length for each of its turns, and is ended by data.max_response_length",
        fix="use applies: train",
        kinds=("opd-agent",),
    ),
    Rule(
        key="opd.horizon.grow_until",
        when="opd.horizon.grow_until is not None and opd.horizon.tokens is None",
        rule="a horizon grows from its tokens in the first step",
        fix="set opd.horizon.tokens, or remove the key",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.reward_beta",
        when="opd.reward_beta is not None and rollout.num_samples == 1",
        rule="reward weighting compares the samples of one prompt, and rollout.num_samples is 1",
        fix="set rollout.num_samples to 2 or more, or remove opd.reward_beta",
        kinds=DISTILS,
    ),
)
