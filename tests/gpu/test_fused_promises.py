"""What the fused divergence promises beside its numbers: reports, memory, bits, empty batches, its backward."""

import pytest
import torch
from tests.gpu import needs
from tests.gpu.reference import (
    BETA,
    BF16,
    FP16,
    GRADIENT_BOUND,
    KINDS,
    SIZES,
    VALUE_BOUND,
    float64_reference,
    make_heads,
    relative_error,
    run_fused,
    weights_of,
)

from opd.losses.fused import head_divergence

needs.hopper()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [0, 2])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_reported_and_does_not_spread(kind, side, value):
    heads = make_heads((41, 1271, 64, 128), BF16, BF16)
    weights = weights_of("ones", 41)
    without = weights.clone()
    without[[3, 17]] = 0.0
    _, clean_hidden, clean_weight = run_fused(heads, kind, without)
    heads[side][3, 5] = value
    heads[side][17, 0] = value
    output, grad_hidden, grad_weight = run_fused(heads, kind, weights)
    assert output.nonfinite.nonzero().flatten().tolist() == [3, 17]
    assert torch.isfinite(output.loss_sum)
    assert torch.count_nonzero(output.divergence[[3, 17]]) == 0
    assert torch.equal(grad_hidden, clean_hidden)
    assert torch.equal(grad_weight, clean_weight)


def test_a_head_that_is_not_finite_is_reported_in_every_row():
    heads = make_heads((41, 1271, 64, 128), BF16, BF16)
    heads[1][7, 7] = float("nan")
    output, grad_hidden, grad_weight = run_fused(heads, "reverse_kl", weights_of("ones", 41))
    assert output.nonfinite.all()
    assert torch.count_nonzero(grad_hidden) == 0
    assert torch.count_nonzero(grad_weight) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_two_runs_are_bit_equal(kind, dtype):
    heads = make_heads((1500, 33001, 256, 512), dtype, dtype)
    weights = weights_of("tiny", 1500)
    first, second = (run_fused(heads, kind, weights, workspace_gib=0.1) for _ in range(2))
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[2], second[2])
    for one, other in zip(first[0][:4], second[0][:4], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("workspace_gib", [0.06, 0.1, 0.25, 2.0])
def test_every_workspace_gives_the_same_gradients(precision, workspace_gib):
    heads = make_heads((1500, 33001, 256, 512), BF16, BF16)
    weights = weights_of("mask", 1500)
    expected = float64_reference(heads, "reverse_kl", weights, 33001)
    output, grad_hidden, grad_weight = run_fused(
        heads, "reverse_kl", weights, workspace_gib=workspace_gib, precision=precision
    )
    assert relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND
    assert relative_error(output.divergence, expected["divergence"]) < VALUE_BOUND


def test_a_workspace_too_small_for_one_tile_is_refused():
    heads = make_heads((200, 33001, 64, 64), BF16, BF16)
    with pytest.raises(ValueError, match=r"workspace_gib=0\.001.*at least 128"):
        run_fused(heads, "reverse_kl", weights_of("ones", 200), workspace_gib=0.001)


def test_memory_does_not_grow_with_tokens():
    peaks = []
    for tokens in (1024, 4096, 16384):
        heads = make_heads((tokens, 33001, 64, 64), BF16, BF16)
        hidden, weight = heads[0].requires_grad_(), heads[1].requires_grad_()
        weights = weights_of("ones", tokens)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        output = head_divergence(
            hidden, weight, *heads[2:], "reverse_kl", token_weights=weights, **SIZES | {"workspace_gib": 0.08}
        )
        peak = torch.cuda.max_memory_allocated() - before
        del output
        peaks.append(peak - 33001 * 64 * 4 - hidden.nbytes)
    assert max(peaks) < 0.08 * 2**30 + 48 * 2**20  # cuBLAS keeps up to 32 MiB of its own, per-token numbers the rest


def test_no_tokens_still_give_a_graph_and_gradients_of_zero():
    heads = make_heads((0, 1271, 64, 128), BF16, BF16)
    hidden, weight = heads[0].requires_grad_(), heads[1].requires_grad_()
    output = head_divergence(
        hidden,
        weight,
        *heads[2:],
        "jsd",
        token_weights=torch.ones(0, device="cuda"),
        beta=BETA,
        backend="fused",
        **SIZES,
    )
    output.loss_sum.backward()
    assert float(output.loss_sum.detach()) == 0.0
    assert hidden.grad.shape == (0, 64)
    assert torch.count_nonzero(weight.grad) == 0


def test_tokens_of_weight_zero_get_outputs_and_no_gradient():
    heads = make_heads((41, 1271, 64, 128), BF16, BF16)
    output, grad_hidden, grad_weight = run_fused(heads, "reverse_kl", torch.zeros(41, device="cuda"))
    assert float(output.loss_sum.detach()) == 0.0
    assert float(output.divergence.min()) > 0.0
    assert torch.count_nonzero(grad_hidden) == 0
    assert torch.count_nonzero(grad_weight) == 0


def test_a_token_that_does_not_count_has_log_probability_minus_infinity():
    heads = make_heads((4, 1280, 64, 128), BF16, BF16)
    ids = torch.tensor([0, 1270, 1271, -100], device="cuda")
    output = head_divergence(
        *heads, "reverse_kl", token_weights=torch.ones(4, device="cuda"), valid_vocab=1271, token_ids=ids, **SIZES
    )
    assert torch.isfinite(output.student_log_prob).tolist() == [True, True, False, False]
    assert torch.isfinite(output.teacher_log_prob).tolist() == [True, True, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_without_gradient_equal_those_with(kind):
    heads = make_heads((300, 5003, 136, 72), BF16, BF16)
    weights = weights_of("tiny", 300)
    with_gradient, _, _ = run_fused(heads, kind, weights)
    with torch.no_grad():
        scores = head_divergence(*heads, kind, token_weights=weights, beta=BETA, backend="fused", **SIZES)
    assert not scores.loss_sum.requires_grad
    for one, other in zip(scores[1:4], with_gradient[1:4], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_the_backward_scales_by_what_comes_from_above_and_runs_once(dtype):
    heads = make_heads((300, 5003, 136, 72), dtype, dtype)
    weights = weights_of("ones", 300)
    _, grad_hidden, grad_weight = run_fused(heads, "reverse_kl", weights)
    hidden, weight = heads[0].float().requires_grad_(), heads[1].requires_grad_()
    output = head_divergence(hidden, weight, *heads[2:], "reverse_kl", token_weights=weights, backend="fused", **SIZES)
    loss = output.loss_sum * 0.25
    loss.backward(retain_graph=True)
    assert torch.equal(hidden.grad, grad_hidden * 0.25)
    assert torch.equal(weight.grad, (grad_weight * 0.25).to(dtype))
    with pytest.raises(RuntimeError, match="call it again"):
        loss.backward()


def test_weights_that_are_not_finite_are_refused():
    heads = make_heads((41, 1271, 64, 128), BF16, BF16)
    weights = torch.full((41,), float("nan"), device="cuda")
    with pytest.raises(ValueError, match="token_weights: holds nan or inf"):
        run_fused(heads, "reverse_kl", weights)


def test_autocast_changes_nothing():
    heads = make_heads((300, 5003, 136, 72), BF16, BF16)
    weights = weights_of("ones", 300)
    _, grad_hidden, grad_weight = run_fused(heads, "jsd", weights)
    with torch.autocast("cuda", torch.bfloat16):
        _, cast_hidden, cast_weight = run_fused(heads, "jsd", weights)
    assert torch.equal(grad_hidden, cast_hidden)
    assert torch.equal(grad_weight, cast_weight)
