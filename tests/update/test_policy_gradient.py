"""A policy gradient next to the divergence through the real worker: loss, gradient and metrics of both, however the batch is cut."""

import pytest
import torch
from tests.update.exact import DYNAMIC, ULYSSES, check, check_counts, cut, expected, in_ways, run
from tests.update.models import uneven_rows
from tests.update.workers import Case

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

DIVERGENCE, POLICY = 0.5, 2.0
WEIGHTS = [f"opd.divergence_weight={DIVERGENCE}", f"opd.policy.weight={POLICY}"]
ADVANTAGES = (1.2, -0.4, 0.0, -0.8, 0.7, 0.3, -1.5, 0.5)
ROWS = [row | {"advantage": advantage} for row, advantage in zip(uneven_rows(), ADVANTAGES, strict=True)]
PER_ROW = ["opd.loss_agg_mode=seq-mean-token-mean"]
CHOSEN = ["opd.importance.tokens.score=divergence", "opd.importance.tokens.ratio=0.5"]
STAGES = (
    "opd.stages=[{until: 1, divergence_weight: 9, policy_weight: 0}, "
    f"{{divergence_weight: {DIVERGENCE}, policy_weight: {POLICY}}}]"
)
SOME_WAYS = [(1, "all"), (1, "token budget"), (2, "token budget"), (2, "shared sequence")]
CLIPS = {"wide": {"low": 0.99, "high": 99, "c": 999}, "tight": {"low": 1e-6, "high": 1e-6}}


@pytest.fixture(scope="module")
def plain(pair) -> Case:
    return Case(student=pair["student"], teacher=pair["teacher"], rows=ROWS)


@pytest.fixture(scope="module")
def runs(plain, pair) -> dict:
    case, twice = cut(plain, sets=WEIGHTS), {"mini_batch": 4, "micro_batch": 2}
    halves = [row | {"teacher": number % 2} for number, row in enumerate(ROWS)]
    clips = {
        (1, f"{name} clip"): cut(case, sets=[f"opd.policy.clip_ratio_{k}={v}" for k, v in clip.items()], **twice)
        for name, clip in CLIPS.items()
    }
    both_worlds = {
        "per row": cut(case, sets=PER_ROW, micro_batch=1),
        "chosen": cut(case, sets=CHOSEN, micro_batch=2),
    }
    return run(
        in_ways(case, *SOME_WAYS)
        | clips
        | {(world, name): each for name, each in both_worlds.items() for world in (1, 2)}
        | {
            (1, "reward alone"): cut(plain, sets=["opd.divergence_weight=0", f"opd.policy.weight={POLICY}"]),
            (1, "2 updates"): cut(case, **twice),
            (1, "2 updates, cut otherwise"): cut(case, overrides=DYNAMIC, mini_batch=4),
            (2, "2 updates, shared sequence"): cut(case, overrides=ULYSSES, **twice),
            (1, "two teachers"): cut(case, teachers={"a": pair["teacher"], "b": pair["wide"]}, rows=halves),
            (1, "stage's weights"): cut(plain, sets=[STAGES], first_step=2),
        }
    )


def _both(row, own, wanted, *, divergence=DIVERGENCE):
    """Weigh the row's reverse KL, and the policy loss at a ratio of 1."""
    kl = (own.exp() * (own - wanted)).sum(-1)
    sampled = own.gather(1, torch.tensor(row["response"])[:, None]).squeeze(1)
    policy = -row["advantage"] * (sampled - sampled.detach()).exp()
    loss = divergence * row["weight"] * kl + POLICY * policy
    return {"opd/loss": loss, "opd/policy_loss": policy.detach(), "opd/divergence": kl.detach()}


@pytest.fixture(scope="module")
def reference(plain) -> dict:
    return expected(plain, _both)


@pytest.mark.parametrize("way", [*SOME_WAYS, (1, "stage's weights")], ids=str)
def test_loss_and_gradient_are_the_weighted_sums_of_both_parts(reference, runs, way):
    check(runs[way], reference)
    assert runs[way]["metrics"]["opd/policy_clipped"] == runs[way]["metrics"]["opd/policy_drift"] == 0


@pytest.mark.parametrize("world", [1, 2])
def test_a_mean_over_responses_is_one_of_both_parts(plain, runs, world):
    wanted = expected(plain, _both, mode="seq-mean-token-mean")
    del wanted["metrics"]["opd/divergence"]  # a mean over tokens in every mode
    check(runs[world, "per row"], wanted)


def test_without_the_divergence_what_is_left_is_the_policy_gradient(plain, runs):
    check(runs[1, "reward alone"], expected(plain, lambda *row: _both(*row, divergence=0.0)))


def test_several_updates_read_the_log_probs_before_the_first(runs):
    metrics = runs[1, "2 updates"]["metrics"]
    assert ["timing/score_s" in found for found in (metrics, runs[1, "all"]["metrics"])] == [True, False]
    assert metrics["opd/num_updates"] == 2
    assert metrics["opd/policy_drift"] != 0, "after the first update the student is another than the one that sampled"
    for other in (runs[1, "2 updates, cut otherwise"], runs[2, "2 updates, shared sequence"]):
        for key in ("opd/loss", "opd/policy_loss", "opd/policy_drift", "opd/policy_clipped", "opd/grad_norm"):
            assert other["metrics"][key] == pytest.approx(metrics[key], rel=1e-4), key


def test_a_clip_that_acts_is_counted_and_one_that_cannot_is_not(runs):
    assert runs[1, "wide clip"]["metrics"]["opd/policy_clipped"] == 0
    assert 0 < runs[1, "tight clip"]["metrics"]["opd/policy_clipped"] < 1


def test_chosen_tokens_are_chosen_by_the_divergence_and_trained_on_by_both(runs):
    assert runs[1, "chosen"]["metrics"]["opd/num_tokens"] < runs[1, "all"]["metrics"]["opd/num_tokens"]
    check_counts(runs[2, "chosen"], runs[1, "chosen"])


def test_a_rows_policy_gradient_is_the_same_whichever_teacher_it_has(runs):
    found, alone = runs[1, "two teachers"]["metrics"], runs[1, "all"]["metrics"]
    assert found["opd/policy_loss"] == pytest.approx(alone["opd/policy_loss"], rel=1e-5)
    assert found["opd/divergence"] != pytest.approx(alone["opd/divergence"], rel=1e-3)
