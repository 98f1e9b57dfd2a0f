"""Signs of silent faults in a micro-batch: each sum against a hand count."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.distributions import Categorical

from opd.experiment.algorithm import Policy, Stage
from opd.experiment.sections import Rollout
from opd.losses import Loss, Weights
from opd.update.head import LossTask, Reference
from opd.update.opd_worker import is_sampled, loss_of
from opd.update.signs import (
    neighbour_signs,
    preference_signs,
    sign_metrics,
    token_signs,
    watched_entries,
    weight_signs,
)

WIDTH, VOCAB = 16, 32


def made(num: int, *, ids: torch.Tensor | None = None, temperature: float = 1.0, sharpness: float = 1.0):
    """A task over `num` tokens of one row and the student's hidden states and head; ids are drawn at `temperature`."""
    torch.manual_seed(3)
    hidden, teacher = torch.randn(num, WIDTH), torch.randn(num, WIDTH)
    weight, teacher_weight = torch.randn(VOCAB, WIDTH) * sharpness, torch.randn(VOCAB, WIDTH)
    drawn = Categorical(logits=hidden @ weight.T / temperature).sample()
    task = LossTask(
        positions=torch.arange(num) + 5, token_ids=drawn if ids is None else ids, token_rows=torch.zeros(num).long(),
        weights=Weights(divergence=torch.ones(num)), loss=Loss("reverse_kl"), sizes={"valid_vocab": VOCAB},
        references=(Reference(lambda: teacher, teacher_weight),), watch=("entropy", "teacher_entropy"),
    )  # fmt: skip
    return task, task.output(hidden, weight)


def counted(sign, *arguments, **options):
    return {name: float(value) for name, value in sign(*arguments, **options).items()}


def changed(output, **statistics):
    return output._replace(statistics=output.statistics | statistics)


def of_tokens(task, output, *, is_sampled=False) -> dict[str, float]:
    counts = counted(token_signs, output, is_sampled=is_sampled)
    entropy = output.statistics["teacher_entropy"].double()
    return sign_metrics(counts | {"sum/tokens": float(len(entropy)), "sum/teacher_entropy": entropy.sum().item()})


@pytest.mark.parametrize(("temperature", "is_own"), [(1.0, True), (1.3, False), (0.7, False)])
def test_tokens_drawn_at_another_temperature_surprise_the_student_otherwise_than_its_entropy(temperature, is_own):
    task, output = made(2000, temperature=temperature, sharpness=0.3)
    metrics, surprise = of_tokens(task, output, is_sampled=True), -output.statistics["log_prob"]
    assert (abs(metrics["opd/surprise_gap_z"]) < 4) is is_own
    assert metrics["opd/surprise"] == pytest.approx(surprise.mean().item(), rel=1e-5)
    gap = (surprise - output.statistics["entropy"]).mean().item()
    assert metrics["opd/surprise_gap"] == pytest.approx(gap, rel=1e-4, abs=1e-6)
    assert "opd/surprise" not in of_tokens(task, output)


def test_the_spread_of_the_teachers_entropy_is_that_over_tokens_and_floored_ones_are_counted():
    task, output = made(50)
    metrics = of_tokens(task, output)
    expected = output.statistics["teacher_entropy"].double().std(correction=0).item()
    assert metrics["opd/teacher_entropy_std"] == pytest.approx(expected, rel=1e-4)
    assert metrics["opd/floored_share"] == 0
    flat = changed(output, teacher_entropy=torch.full((50,), math.log(VOCAB)), divergence=torch.full((50,), 1e20))
    metrics = of_tokens(task, flat)
    assert metrics["opd/teacher_entropy_std"] < 1e-6
    assert metrics["opd/floored_share"] == 1
    bounded = changed(output, teacher_log_prob=torch.full((50,), -1e30))
    assert of_tokens(task, bounded)["opd/floored_share"] == 1


@pytest.mark.parametrize(("shift", "share"), [(0, 0.0), (1, 1.0), (-1, 1.0)])
def test_a_teacher_that_is_read_one_position_off_prefers_the_neighbours(shift, share):
    ids = torch.arange(20) % VOCAB
    task, _ = made(20, ids=ids)
    weight = torch.eye(VOCAB, WIDTH * 2)
    right = weight[(ids + shift) % VOCAB]  # a teacher that is sure of the token at `shift` from the right one
    sure = task._replace(references=(Reference(lambda: right, weight),))
    assert sign_metrics(counted(neighbour_signs, sure)) == {
        "opd/teacher_prefers_neighbour": share,
        "opd/teacher_pairs": 19,
    }
    apart = sure._replace(positions=task.positions * 2)
    assert counted(neighbour_signs, apart)["sum/neighbours"] == 0


def test_of_several_teachers_each_is_asked_for_the_neighbours_of_its_own_rows():
    ids = torch.arange(20) % VOCAB
    task, _ = made(20, ids=ids)
    weight = torch.eye(VOCAB, WIDTH * 2)
    right, shifted = weight[ids], weight[(ids + 1) % VOCAB]
    first, second = torch.arange(20).split(10)
    references = (
        Reference(lambda: right[first], weight, "a", (0,), first),
        Reference(lambda: shifted[second], weight, "b", (0,), second),
    )
    found = counted(neighbour_signs, task._replace(references=references))
    assert sign_metrics(found) == {"opd/teacher_prefers_neighbour": 0.5, "opd/teacher_pairs": 18}


def test_a_teacher_that_likes_the_better_answers_correlates_with_the_score():
    _, output = made(6)
    rows, scores = torch.tensor([0, 0, 1, 1, 3, 3]), torch.tensor([1.0, 0.0, 9.0, 1.0])
    difference = torch.tensor([0.4, 0.6, -1.0, -2.0, 0.1, 0.3])
    output = changed(output, log_prob=torch.zeros(6), teacher_log_prob=difference)
    counts = counted(preference_signs, rows, scores, output)
    assert counts["sum/preferred_rows"] == 3, "the third row trains nothing"
    means, kept = torch.tensor([0.5, -1.5, 0.2]), scores[[0, 1, 3]]
    expected = torch.corrcoef(torch.stack([means, kept]))[0, 1].item()
    assert sign_metrics(counts)["opd/teacher_preference"] == pytest.approx(expected, rel=1e-5)
    assert "opd/teacher_preference" not in sign_metrics(counted(preference_signs, rows, torch.ones(4), output))


@pytest.mark.parametrize(("num_rows", "found"), [(1, None), (2, 1.0)])
def test_two_rows_are_the_fewest_that_correlate(num_rows, found):
    # Of the rows all but one have score and preference 0.
    ones = ("score", "score_squared", "preferred", "preferred_squared", "score_preferred")
    counts = {f"sum/{name}": 1.0 for name in ones} | {"sum/preferred_rows": num_rows}
    assert sign_metrics(counts).get("opd/teacher_preference") == pytest.approx(found)


def test_weights_that_an_update_leaves_are_told_from_those_that_it_moves():
    module = torch.nn.Linear(4, 3)
    before = watched_entries(module)
    for factor in (1.0, 1.1):
        with torch.no_grad():
            module.bias.mul_(factor)
        counts = weight_signs(before, watched_entries(module))
        moved = sign_metrics({name: value for name, [value] in counts.items()})["opd/weight_change"]
        assert (moved > 0) is (factor != 1.0)


@pytest.mark.parametrize(
    ("rollout", "stage", "drawn"),
    [
        ({}, "student", True),
        ({"top_p": 0.9}, "student", False),
        ({"top_k": 20}, "student", False),
        ({}, "teacher", False),
        ({"schedule": "carry"}, "student", False),
    ],
)
def test_tokens_are_the_students_own_draws_where_nothing_chooses_among_them(rollout, stage, drawn):
    spec = SimpleNamespace(rollout=Rollout.model_construct(**rollout))
    assert is_sampled(spec, SimpleNamespace(rollouts=stage)) is drawn


@pytest.mark.parametrize(
    ("stage", "kind", "params"),
    [
        ({"loss_type": "jsd", "beta": 0.3}, "jsd", {"beta": 0.3}),
        ({"loss_type": "topk_reverse_kl"}, "topk_reverse_kl", {"top_k": 3}),
        ({"loss_type": "skew_kl", "loss_params": {"skew": 0.2}}, "skew_kl", {"skew": 0.2}),
        ({"loss_type": "topk_reverse_kl"}, "forward_kl", {}),
    ],
)
def test_a_loss_has_the_parameters_of_the_stages_own_divergence_only(stage, kind, params):
    opd = SimpleNamespace(top_k=3, has_policy=False, policy=Policy())
    spec = SimpleNamespace(opd=opd, rollout=SimpleNamespace(temperature=0.7))
    found = loss_of(spec, Stage(**stage), kind)
    assert (found.kind, found.params, found.temperature, found.policy) == (kind, params, 0.7, None)
