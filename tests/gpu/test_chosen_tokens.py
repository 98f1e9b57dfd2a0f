"""The fused divergence on chosen tokens: what is scored and held at once gives what scoring first and training then gives."""

import functools

import pytest
import torch
from tests.gpu import needs
from tests.gpu.reference import (
    BETA,
    BF16,
    FP16,
    GRADIENT_BOUND,
    VALUE_BOUND,
    float64_reference,
    make_heads,
    relative_error,
    weights_of,
)

from opd.config.algorithm import TokenImportance
from opd.importance import choose_tokens
from opd.importance.micro import MicroBatchChoice
from opd.losses.cuda import chosen as form
from opd.worker.head import Choice, DivergenceTask
from opd.worker.teacher_cache import Fetch

needs.hopper()

VOCAB = 33001
EVEN, UNEVEN = (600,) * 5, (17, 900, 1, 1300, 333, 449)  # tokens of each rollout
LARGE, SMALL = 1.1, 0.06  # GiB: room for every kept row, and for three quarters of them
SCORES = ("divergence", "soft_or", "q3", "entropy", "entropy_length")


def run(heads, selection, sizes, *, holds, kind="reverse_kl", workspace_gib=LARGE, precision="fp16"):
    """(output, choice, both gradients) of the head's own task."""
    hidden, weight, teacher_hidden, teacher_weight = heads
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    weight.grad_dtype = torch.float32
    rows = torch.arange(len(sizes), device="cuda").repeat_interleave(torch.tensor(sizes, device="cuda"))
    tokens = torch.arange(len(rows), device="cuda")
    choice = Choice(
        choose=functools.partial(choose_tokens, selection, rows, seed=3),
        kind=None if not selection.needs_teacher else "forward_kl" if selection.score == "q3" else kind,
        held=MicroBatchChoice(selection, rows, seed=3) if holds else None,
    )
    task = DivergenceTask(
        positions=tokens,
        token_ids=tokens,
        token_weights=weights_of("ones", len(rows)),
        teacher_hidden=Fetch(teacher_hidden, None),
        teacher_weight=teacher_weight,
        kind=kind,
        beta=BETA,
        temperature=1.0,
        chunk_size=512,
        valid_vocab=VOCAB,
        workspace_gib=workspace_gib,
        choice=choice,
    )
    output = task.divergence(hidden, weight, precision)
    output.loss_sum.backward()
    return output, choice, hidden.grad, weight.grad


def heads_for(sizes, dtype=BF16, seed=0):
    heads = make_heads((sum(sizes), VOCAB, 256, 512), dtype, dtype, seed=seed)
    heads[0] = heads[0] * torch.linspace(0.3, 1.5, sum(sizes), device="cuda").unsqueeze(1).to(dtype)
    return heads


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN])
@pytest.mark.parametrize("workspace_gib", [LARGE, SMALL])
@pytest.mark.parametrize("score", SCORES)
def test_held_rows_give_the_tokens_and_gradients_of_float64(score, workspace_gib, sizes):
    selection = TokenImportance(score=score, ratio=0.2, normalize="micro")
    heads = heads_for(sizes)
    output, choice, grad_hidden, grad_weight = run(heads, selection, sizes, holds=True, workspace_gib=workspace_gib)
    _, twice, *_ = run(heads, selection, sizes, holds=False)
    kept = choice.kept[0]
    assert torch.equal(kept, twice.kept[0])
    for name, values in twice.scores.items():
        assert torch.equal(choice.scores[name], values)
    expected = float64_reference(heads, "reverse_kl", kept.double(), VOCAB)
    assert relative_error(grad_hidden, expected["grad_hidden"]) < 1.2 * GRADIENT_BOUND  # rounded to bf16 once more
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND
    assert relative_error(output.divergence, expected["divergence"][kept]) < VALUE_BOUND
    assert torch.count_nonzero(grad_hidden[~kept]) == 0


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("kind", ["forward_kl", "jsd"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_every_ratio_kind_and_storage_gives_what_scoring_first_gives(ratio, dtype, kind, precision):
    selection = TokenImportance(score="soft_or", ratio=ratio, normalize="micro")
    heads = heads_for(UNEVEN, dtype)
    once, twice = (
        run(heads, selection, UNEVEN, holds=holds, kind=kind, precision=precision, workspace_gib=0.25)
        for holds in (True, False)
    )
    assert torch.equal(once[1].kept[0], twice[1].kept[0])
    for one, other in zip(once[0][:6], twice[0][:6], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=0.0)
    for one, other in zip(once[2:], twice[2:], strict=True):
        assert float((one.float() - other.float()).norm()) <= 2e-3 * float(other.float().norm())


@pytest.mark.parametrize("score", SCORES)
def test_rows_that_are_not_finite_are_reported_and_do_not_spread(score):
    selection = TokenImportance(score=score, ratio=0.3, normalize="micro")
    heads = heads_for(EVEN)
    heads[0][700, 3], heads[2][1300, 5] = torch.nan, torch.inf
    once, twice = (run(heads, selection, EVEN, holds=holds) for holds in (True, False))
    assert torch.equal(once[1].kept[0], twice[1].kept[0])
    assert torch.equal(once[0].nonfinite, twice[0].nonfinite)
    assert once[0].nonfinite.any()
    for one, other in zip(once[2:], twice[2:], strict=True):
        assert torch.isfinite(one).all()
        assert float((one.float() - other.float()).norm()) <= 2e-3 * float(other.float().norm())


def test_a_student_near_its_teacher_is_stored_in_fp32_on_the_same_tokens():
    heads = make_heads((3000, VOCAB, 256, 256), BF16, BF16)
    heads[2], heads[3] = heads[0], (heads[1] * (1 + 0.003 * torch.randn_like(heads[1]))).to(BF16)
    selection = TokenImportance(score="divergence", ratio=0.2, normalize="micro")
    once, twice = (run(heads, selection, EVEN, holds=holds) for holds in (True, False))
    assert once[0].precision == twice[0].precision == "fp32"
    assert torch.equal(once[1].kept[0], twice[1].kept[0])
    assert torch.equal(once[2], twice[2])
    assert torch.equal(once[3], twice[3])


@pytest.mark.parametrize("score", ["soft_or", "entropy"])
def test_two_runs_are_bit_equal(score):
    selection = TokenImportance(score=score, ratio=0.2, normalize="micro")
    first, second = (run(heads_for(UNEVEN), selection, UNEVEN, holds=True, workspace_gib=SMALL) for _ in range(2))
    for one, other in zip((*first[0][:6], *first[2:]), (*second[0][:6], *second[2:]), strict=True):
        assert torch.equal(one, other)


def test_kept_rows_are_not_made_twice_where_a_rollout_is_scored_at_once(monkeypatch):
    made: list[int] = []
    plain = form.ChosenForward._make
    monkeypatch.setattr(
        form.ChosenForward,
        "_make",
        lambda self, scratch, tokens, slots: made.append(len(tokens)) or plain(self, scratch, tokens, slots),
    )
    run(heads_for(EVEN), TokenImportance(score="divergence", ratio=0.2, normalize="micro"), EVEN, holds=True)
    assert sum(made) == 0


def test_memory_stays_within_the_workspace_and_falls_with_the_ratio():
    peaks = {}
    for ratio in (0.1, 0.5):
        heads, selection = heads_for(UNEVEN), TokenImportance(score="soft_or", ratio=ratio, normalize="micro")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(heads, selection, UNEVEN, holds=True, workspace_gib=0.3)
        peaks[ratio] = torch.cuda.max_memory_allocated() - before
    gradients = VOCAB * 256 * 4 + 3000 * 256 * 2
    copies = VOCAB * 256 * 2 + 3000 * 256 * 2  # of the test's own leaves
    assert peaks[0.5] < 0.3 * 2**30 + gradients + copies + 64 * 2**20
    assert peaks[0.1] < peaks[0.5]
