"""A policy gradient beside the divergence through the real worker: loss, gradient and metrics of both, however the batch is cut."""

from __future__ import annotations

import pytest
import torch
from tests.update.batches import uneven_rows
from tests.update.models import VOCAB, save_model
from tests.update.workers import Case, run_cases
from transformers import Qwen3ForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

DIVERGENCE, POLICY = 0.5, 2.0
WEIGHTS = [f"opd.divergence_weight={DIVERGENCE}", f"opd.policy.weight={POLICY}"]
ADVANTAGES = (1.2, -0.4, 0.0, -0.8, 0.7, 0.3, -1.5, 0.5)
DYNAMIC = [
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=48",
]
ULYSSES = ["actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"]
TOKENS = "opd.importance.tokens"
CLIPS = {"wide": {"low": 0.99, "high": 99, "c": 999}, "tight": {"low": 1e-6, "high": 1e-6}}
CHOSEN = [f"{TOKENS}.score=divergence", f"{TOKENS}.ratio=0.5"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    sizes = {
        "student": {"hidden": 32, "layers": 2, "rows": 64, "tied": False, "seed": 1},
        "teacher": {"hidden": 48, "layers": 3, "rows": 96, "tied": False, "seed": 2},
        "wide": {"hidden": 64, "layers": 1, "rows": 80, "tied": True, "seed": 3},
    }
    return {name: save_model(base / name, **size) for name, size in sizes.items()}


def _rows() -> list[dict]:
    return [
        row | {"advantage": advantage, "teacher": number % 2}
        for number, (row, advantage) in enumerate(zip(uneven_rows(), ADVANTAGES, strict=True))
    ]


def _case(folders, *more, sets=WEIGHTS, **cut) -> Case:
    return Case(
        student=folders["student"],
        teacher=folders["teacher"],
        rows=_rows(),
        overrides=list(more),
        sets=list(sets),
        **cut,
    )


@pytest.fixture(scope="module")
def one_rank(folders) -> dict[str, dict]:
    both = {"a": folders["teacher"], "b": folders["wide"]}
    per_row = [*WEIGHTS, "opd.loss_agg_mode=seq-mean-token-mean"]
    cases = {
        "all": _case(folders),
        "token budget": _case(folders, *DYNAMIC),
        "per row": _case(folders, sets=per_row, micro_batch=2),
        "reward alone": _case(folders, sets=["opd.divergence_weight=0", f"opd.policy.weight={POLICY}"]),
        "2 updates": _case(folders, mini_batch=4, micro_batch=2),
        "2 updates, cut otherwise": _case(folders, *DYNAMIC, mini_batch=4, remove_padding=True),
        **{
            f"2 updates, {name} clip": _case(
                folders,
                mini_batch=4,
                micro_batch=2,
                sets=[*WEIGHTS, *(f"opd.policy.clip_ratio_{k}={v}" for k, v in clip.items())],
            )
            for name, clip in CLIPS.items()
        },
        "chosen": _case(folders, *CHOSEN, micro_batch=2),
        "two teachers": Case(
            student=folders["student"], teacher="", teachers=both, rows=_rows(), micro_batch=4, sets=WEIGHTS
        ),
        "stage's weights": _case(
            folders,
            sets=[
                "opd.stages=[{until: 1, divergence_weight: 9, policy_weight: 0}, "
                f"{{divergence_weight: {DIVERGENCE}, policy_weight: {POLICY}}}]"
            ],
            first_step=2,
        ),
        "sampled": _case(folders, sets=["opd.loss_type=sampled_reverse_kl"], micro_batch=2),
        "top 3": _case(folders, sets=["opd.loss_type=topk_reverse_kl", "opd.top_k=3"], micro_batch=2),
    }
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.fixture(scope="module")
def two_ranks(folders) -> dict[str, dict]:
    per_row = [*WEIGHTS, "opd.loss_agg_mode=seq-mean-token-mean"]
    cases = {
        "token budget": _case(folders, *DYNAMIC, micro_batch=4),
        "shared sequence": _case(folders, *ULYSSES, micro_batch=2),
        "per row": _case(folders, sets=per_row, micro_batch=1),
        "2 updates": _case(folders, mini_batch=4, micro_batch=2),
        "2 updates, shared sequence": _case(folders, *ULYSSES, mini_batch=4, micro_batch=2),
        "chosen": _case(folders, *CHOSEN, micro_batch=2),
        "sampled": _case(folders, sets=["opd.loss_type=sampled_reverse_kl"], micro_batch=2),
        "top 3": _case(folders, sets=["opd.loss_type=topk_reverse_kl", "opd.top_k=3"], micro_batch=2),
    }
    return dict(zip(cases, run_cases(list(cases.values()), world=2), strict=True))


def _log_probs(model: Qwen3ForCausalLM, row: dict) -> torch.Tensor:
    """[response, VOCAB] of one row alone, in float64."""
    ids = torch.tensor([row["prompt"] + row["response"]])
    return model(input_ids=ids).logits[0, len(row["prompt"]) - 1 : -1, :VOCAB].log_softmax(-1)


def _reference(folders, of_row, *, over_rows: bool = False) -> dict:
    """Loss and gradients of whole models in float64.

    Args:
        of_row: (row, log p_S [n, V], log p_T, mask [n]) -> its loss's parts, the weighted sum and others.
    """
    student, teacher = (
        Qwen3ForCausalLM.from_pretrained(folders[name], dtype=torch.float64) for name in ("student", "teacher")
    )
    total, parts, num = torch.zeros((), dtype=torch.float64), {}, 0
    for row in _rows():
        mask = torch.tensor(row["mask"], dtype=torch.float64)
        with torch.no_grad():
            wanted = _log_probs(teacher, row)
        loss, found = of_row(row, _log_probs(student, row), wanted, mask)
        size = max(float(mask.sum()), 1.0) if over_rows else 1.0
        total = total + loss / size
        parts = {name: parts.get(name, 0.0) + float(value) / size for name, value in found.items()}
        num += bool(mask.any()) if over_rows else int(mask.sum())
    (total / num).backward()
    gradients = {name: parameter.grad for name, parameter in student.named_parameters()}
    return {"loss": (total / num).item(), "gradients": gradients} | {name: value / num for name, value in parts.items()}


def _both(row, own, wanted, mask):
    """DIVERGENCE times the row's weighted reverse KL, and POLICY times the policy loss at a ratio of 1."""
    kl = ((own.exp() * (own - wanted)).sum(-1) * mask).sum()
    sampled = own.gather(1, torch.tensor(row["response"])[:, None]).squeeze(1)
    policy = (-row["advantage"] * (sampled - sampled.detach()).exp() * mask).sum()
    return DIVERGENCE * row["weight"] * kl + POLICY * policy, {"policy": policy.detach(), "divergence": kl.detach()}


def _compare(found: dict, expected: dict) -> None:
    assert found["metrics"]["opd/loss"] == pytest.approx(expected["loss"], rel=1e-5)
    for name, gradient in expected["gradients"].items():
        difference = (found["gradients"][name].double() - gradient).norm()
        assert difference <= 1e-4 * gradient.norm(), name


@pytest.fixture(scope="module")
def reference(folders) -> dict:
    return _reference(folders, _both)


CUTS = [(1, "all"), (1, "token budget"), (1, "stage's weights"), (2, "token budget"), (2, "shared sequence")]


@pytest.mark.parametrize(("world", "cut"), CUTS)
def test_loss_and_gradient_are_the_weighted_sums_of_both_parts(reference, one_rank, two_ranks, world, cut):
    found = (one_rank if world == 1 else two_ranks)[cut]
    _compare(found, reference)
    metrics = found["metrics"]
    assert metrics["opd/policy_loss"] == pytest.approx(reference["policy"], rel=1e-5)
    assert metrics["opd/divergence"] == pytest.approx(reference["divergence"], rel=1e-5)
    assert metrics["opd/policy_clipped"] == metrics["opd/policy_drift"] == 0


@pytest.mark.parametrize("world", [1, 2])
def test_a_mean_over_responses_is_one_of_both_parts(folders, one_rank, two_ranks, world):
    expected = _reference(folders, _both, over_rows=True)
    found = (one_rank if world == 1 else two_ranks)["per row"]
    _compare(found, expected)
    assert found["metrics"]["opd/policy_loss"] == pytest.approx(expected["policy"], rel=1e-5)


def test_without_the_divergence_what_is_left_is_the_policy_gradient(folders, one_rank):
    def policy(row, own, wanted, mask):
        return _both(row | {"weight": 0.0}, own, wanted, mask)

    _compare(one_rank["reward alone"], _reference(folders, policy))
    assert one_rank["reward alone"]["metrics"]["opd/divergence"] > 0, "it is measured all the same"


def test_several_updates_read_the_log_probs_before_the_first(one_rank, two_ranks):
    metrics = one_rank["2 updates"]["metrics"]
    assert metrics["opd/num_updates"] == 2
    assert metrics["opd/policy_drift"] != 0, "behind the first update the student is another than the one that sampled"
    for other in (one_rank["2 updates, cut otherwise"], two_ranks["2 updates, shared sequence"]):
        for key in ("opd/loss", "opd/policy_loss", "opd/policy_drift", "opd/policy_clipped", "opd/grad_norm"):
            assert other["metrics"][key] == pytest.approx(metrics[key], rel=1e-4), key


def test_a_clip_that_acts_is_counted_and_one_that_cannot_is_not(one_rank):
    assert one_rank["2 updates, wide clip"]["metrics"]["opd/policy_clipped"] == 0
    assert 0 < one_rank["2 updates, tight clip"]["metrics"]["opd/policy_clipped"] < 1


def test_chosen_tokens_are_chosen_by_the_divergence_and_trained_on_by_both(one_rank, two_ranks):
    found = one_rank["chosen"]["metrics"]
    assert found["opd/num_tokens"] < one_rank["all"]["metrics"]["opd/num_tokens"]
    for key in ("opd/loss", "opd/policy_loss", "opd/grad_norm"):
        assert two_ranks["chosen"]["metrics"][key] == pytest.approx(found[key], rel=1e-5), key


def test_a_rows_policy_gradient_is_the_same_whichever_teacher_it_has(one_rank):
    found, alone = one_rank["two teachers"]["metrics"], one_rank["all"]["metrics"]
    assert found["opd/policy_loss"] == pytest.approx(alone["opd/policy_loss"], rel=1e-5)
    assert found["opd/divergence"] != pytest.approx(alone["opd/divergence"], rel=1e-3)


@pytest.mark.parametrize("world", [1, 2])
def test_a_sampled_tokens_log_ratio_trains_as_an_advantage(folders, one_rank, two_ranks, world):
    def sampled(row, own, wanted, mask):
        ids = torch.tensor(row["response"])[:, None]
        log_p, log_q = (side.gather(1, ids).squeeze(1) for side in (own, wanted))
        cost = (log_p - log_q - (own.exp() * (own - wanted)).sum(-1)).detach()
        value = ((log_p - log_q).detach() * mask).sum()
        # Its value is the log ratio, its gradient that of an advantage: the sum has both.
        return row["weight"] * (value + (cost * (log_p - log_p.detach()) * mask).sum()), {"divergence": value}

    expected = _reference(folders, sampled)
    found = (one_rank if world == 1 else two_ranks)["sampled"]
    _compare(found, expected)
    assert found["metrics"]["opd/divergence"] == pytest.approx(expected["divergence"], rel=1e-5)


@pytest.mark.parametrize("world", [1, 2])
def test_the_teachers_top_tokens_train_with_the_tail_as_one_event(folders, one_rank, two_ranks, world):
    def top(row, own, wanted, mask):
        places = wanted.topk(3, dim=-1).indices
        events = []
        for side in (own, wanted):
            p = side.exp()
            some = p.gather(1, places)
            events.append(torch.cat([some, 1 - some.sum(-1, keepdim=True)], dim=-1))
        kl = ((events[0] * (events[0] / events[1]).log()).sum(-1) * mask).sum()
        return row["weight"] * kl, {"divergence": kl.detach()}

    expected = _reference(folders, top)
    found = (one_rank if world == 1 else two_ranks)["top 3"]
    _compare(found, expected)
    assert found["metrics"]["opd/divergence"] == pytest.approx(expected["divergence"], rel=1e-5)
