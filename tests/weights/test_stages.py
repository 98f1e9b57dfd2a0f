"""Stages of a run's steps, against cases computed by hand."""

import pytest

from opd.experiment.algorithm import Opd, Policy, Stage
from opd.weights.stages import Schedule, last_steps, step_at


def schedule(*stages: Stage, total_steps: int = 10, **keys) -> Schedule:
    opd = Opd(max_length=32, stages=stages, **keys)
    return Schedule.of(opd, total_steps=total_steps)


@pytest.mark.parametrize(
    ("point", "total_steps", "step"),
    [(0.5, 10, 5), (0.5, 11, 5), (0.29, 100, 29), (0.999, 10, 9), (7, 10, 7), (1, 10, 1)],
)
def test_a_share_of_the_steps_is_rounded_down_as_it_was_written_and_a_step_is_itself(point, total_steps, step):
    assert step_at(point, total_steps) == step


@pytest.mark.parametrize(
    ("untils", "ends"),
    [
        ([None], (10,)),
        ([0.5, None], (5, 10)),
        ([3, None], (3, 10)),
        ([2, 0.5, 0.75, None], (2, 5, 7, 10)),
        ([1, 2, None], (1, 2, 10)),
        ([20, None], (20, 20)),  # a run cut short for a trial ends in its first stage
    ],
)
def test_stages_end_where_their_keys_say_and_the_last_takes_the_rest(untils, ends):
    assert last_steps(untils, total_steps=10) == ends


@pytest.mark.parametrize(
    ("untils", "words"),
    [
        ([0.05, None], "stage 1 of 2 would end with step 0"),
        ([0.6, 0.5, None], "stage 2 of 3"),
        ([4, 4, None], "stage 2"),
    ],
)
def test_a_stage_without_a_step_is_refused(untils, words):
    with pytest.raises(ValueError, match=words):
        last_steps(untils, total_steps=10)


def test_each_step_has_the_loss_and_the_rollouts_of_its_stage_at_both_sides_of_a_boundary():
    found = schedule(
        Stage(until=0.3, loss_type="forward_kl", rollouts="teacher"), Stage(until=6, loss_type="jsd", beta=0.2), Stage()
    )
    kinds = [found.stage(step).loss_type for step in range(1, 11)]
    assert kinds == ["forward_kl"] * 3 + ["jsd"] * 3 + ["reverse_kl"] * 4
    assert [found.stage(step).rollouts for step in (1, 3, 4, 10)] == ["teacher", "teacher", "student", "student"]
    assert [found.stage(step).beta for step in (3, 4, 6, 7)] == [None, 0.2, 0.2, None]
    assert [found.number(step) for step in (1, 3, 4, 6, 7, 10, 11)] == [0, 0, 1, 1, 2, 2, 2]


def test_a_stage_without_a_loss_has_the_runs_and_so_has_a_run_without_stages():
    found = schedule(Stage(until=1, loss_type="forward_kl"), Stage(), loss_type="jsd", beta=0.7)
    assert (found.stage(1).loss_type, found.stage(1).beta) == ("forward_kl", None)
    assert (found.stage(2).loss_type, found.stage(2).beta) == ("jsd", 0.7)
    plain = schedule(loss_type="forward_kl")
    assert [(plain.stage(s).loss_type, plain.stage(s).rollouts) for s in (0, 1, 10)] == [("forward_kl", "student")] * 3


def test_a_stages_weights_are_its_own_or_the_runs():
    found = schedule(
        Stage(until=2), Stage(until=4, policy_weight=3), Stage(divergence_weight=0),
        divergence_weight=0.5, policy=Policy(weight=0.25),
    )  # fmt: skip
    assert [found.weights_at(step) for step in (1, 2, 3, 4, 5, 10)] == [
        (0.5, 0.25), (0.5, 0.25), (0.5, 3), (0.5, 3), (0, 0.25), (0, 0.25),
    ]  # fmt: skip
    assert schedule().weights_at(7) == (1, 0)
