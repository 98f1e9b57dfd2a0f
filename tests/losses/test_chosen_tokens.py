"""The loop that chooses tokens while it scores them, its CUDA sources run on the CPU, against float64 on the tokens it keeps."""

import functools

import pytest
import torch
from tests.losses import kernels_on_cpu
from tests.losses.test_row_kernel import BOUND, VOCAB, call, make, reference, relative

from opd.config.algorithm import TokenImportance
from opd.importance import choose_tokens
from opd.importance.micro import MicroBatchChoice

pytest.importorskip("triton", reason="NOT TESTED HERE: the fused form's loop imports triton")

SCORES = ("divergence", "soft_or", "q3", "entropy", "entropy_length")
EVEN, UNEVEN = (8,) * 4, (3, 13, 1, 9, 6)  # tokens of each rollout
ROW = 2 * 1280  # bytes of a row of logits in 16 bits
LARGE, SMALL = 2**24, 14 * ROW  # room for every kept row, and for some of them


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of two to eight tokens."""
    kernels_on_cpu.install(monkeypatch)
    monkeypatch.setattr("opd.losses.cuda.plan.ROW_MULTIPLE", 2)
    monkeypatch.setattr("opd.losses.cuda.plan.MIN_LOGITS_ROWS", 2)
    monkeypatch.setattr("opd.losses.cuda.plan.MAX_LOGITS_ROWS", 8)


def run(inputs, selection, sizes, *, workspace=LARGE, kind="reverse_kl", precision="fp16", need_weight=True):
    from opd.losses.cuda.chosen import ChosenCall, run_chosen
    from opd.losses.cuda.run import Inputs

    rows = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    scored = None if not selection.needs_teacher else "forward_kl" if selection.score == "q3" else kind
    ids = inputs["token_ids"].clamp(0, VOCAB - 1)
    chosen = ChosenCall(call(VOCAB, kind, 0.8, precision, workspace), MicroBatchChoice(selection, rows, seed=3), scored)
    result = run_chosen(
        Inputs(*(inputs | {"token_ids": ids}).values()), chosen, need_hidden=True, need_weight=need_weight
    )
    choose = functools.partial(choose_tokens, selection, rows, seed=3)
    scores = {"entropy": result.entropy} | ({} if scored is None else {"divergence": result.divergence})
    assert torch.equal(result.kept, choose(**scores))
    assert torch.equal(result.tokens, result.kept.nonzero().squeeze(1))
    return result


def check(result, inputs, *, kind="reverse_kl"):
    weights = torch.where(result.kept, inputs["token_weights"], 0.0)
    expected, grad_hidden, grad_weight = reference(inputs | {"token_weights": weights}, kind, 0.8)
    assert relative(result.of_kept.grad_weight, grad_weight) < BOUND
    assert relative(result.of_kept.grad_hidden, grad_hidden) < 2 * BOUND  # rounded to bf16 once more
    assert relative(result.of_kept.stats[:, 0], expected.divergence[result.kept]) < BOUND
    assert relative(result.of_kept.loss_sum, expected.loss_sum.detach()) < BOUND
    assert torch.count_nonzero(result.of_kept.grad_hidden[~result.kept]) == 0


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN])
@pytest.mark.parametrize("workspace", [LARGE, SMALL])
@pytest.mark.parametrize("score", SCORES)
def test_kept_tokens_and_gradients_are_those_of_scoring_first(score, workspace, sizes):
    inputs = make(torch.bfloat16, sum(sizes))
    check(run(inputs, TokenImportance(score=score, ratio=0.4, normalize="micro"), sizes, workspace=workspace), inputs)


@pytest.mark.parametrize("scope", ["rollout", "batch"])
@pytest.mark.parametrize("mode", ["topk", "bottomk", "sample"])
def test_every_mode_and_scope(mode, scope):
    inputs = make(torch.float16, sum(UNEVEN))
    selection = TokenImportance(score="soft_or", ratio=0.3, normalize="micro", mode=mode, scope=scope)
    check(run(inputs, selection, UNEVEN, workspace=SMALL), inputs)


@pytest.mark.parametrize("kind", ["forward_kl", "jsd"])
@pytest.mark.parametrize(("precision", "ratio"), [("fp16", 1.0), ("fp32", 0.5)])
def test_every_kind_and_storage(kind, precision, ratio):
    inputs = make(torch.bfloat16, sum(UNEVEN))
    selection = TokenImportance(score="divergence", ratio=ratio, normalize="micro")
    check(run(inputs, selection, UNEVEN, kind=kind, precision=precision), inputs, kind=kind)


@pytest.mark.parametrize("score", [score for score in SCORES if score != "entropy_length"])
def test_a_row_that_is_not_finite_is_reported_and_does_not_spread(score):
    inputs = make(torch.bfloat16, sum(EVEN))
    inputs["student_hidden"][10, 3] = torch.nan
    result = run(inputs, TokenImportance(score=score, ratio=0.5, normalize="micro"), EVEN)
    kept_finite = result.of_kept.stats[:, 5] == 1
    assert kept_finite.tolist() == (result.tokens != 10).tolist()
    assert 10 in result.tokens
    assert torch.isfinite(result.of_kept.grad_weight).all()
    assert torch.isfinite(result.of_kept.grad_hidden).all()


@pytest.mark.parametrize("score", ["soft_or", "entropy"])
def test_no_token_kept_has_gradients_of_zero(score):
    result = run(make(torch.bfloat16, sum(EVEN)), TokenImportance(score=score, ratio=0.0, normalize="micro"), EVEN)
    assert not result.kept.any()
    assert torch.count_nonzero(result.of_kept.grad_weight) == torch.count_nonzero(result.of_kept.grad_hidden) == 0


@pytest.mark.parametrize("score", ["soft_or", "entropy"])
def test_a_frozen_head_lends_no_storage(score):
    inputs = make(torch.bfloat16, sum(UNEVEN))
    selection = TokenImportance(score=score, ratio=0.4, normalize="micro")
    frozen = run(inputs, selection, UNEVEN, need_weight=False)
    trained = run(inputs, selection, UNEVEN)
    assert frozen.of_kept.grad_weight is None
    torch.testing.assert_close(frozen.of_kept.grad_hidden, trained.of_kept.grad_hidden)


@pytest.mark.parametrize("score", ["divergence", "entropy"])
def test_no_row_is_made_twice_where_rollouts_are_scored_whole(monkeypatch, score):
    from opd.losses.cuda import chosen

    made: list[int] = []
    monkeypatch.setattr(chosen.ChosenForward, "_make", lambda self, scratch, tokens, slots: made.append(len(tokens)))
    inputs = make(torch.bfloat16, sum(EVEN))
    check(run(inputs, TokenImportance(score=score, ratio=0.4, normalize="micro"), EVEN), inputs)
    assert sum(made) == 0
