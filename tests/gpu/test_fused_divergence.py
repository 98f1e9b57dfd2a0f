"""The fused divergence on a CUDA device against float64, and what it promises beside numbers."""

import itertools

import pytest
import torch
from torch import Tensor

from opd.losses.divergence import divergence
from opd.losses.fused import HeadDivergence, head_divergence, two_pass_divergence

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip(
        "NOT TESTED HERE: the fused divergence needs a CUDA device of compute capability 9.0 (Hopper)",
        allow_module_level=True,
    )

GRADIENT_BOUND = 3e-3  # relative error of both gradients against float64
VALUE_BOUND = 1e-3  # of per-token outputs
KINDS = ("reverse_kl", "forward_kl", "jsd")
BF16, FP16 = torch.bfloat16, torch.float16
# tokens, vocabulary, student width, teacher width: nothing a multiple of a tile, a cluster or a vector
SHAPES = ((41, 1271, 64, 128), (1, 257, 128, 64), (300, 5003, 136, 72), (131, 33001, 256, 512))


def make_heads(
    shape: tuple[int, int, int, int], student: torch.dtype, teacher: torch.dtype, *, std: float = 2.0, seed: int = 0
) -> list[Tensor]:
    """Student hidden, student head, teacher hidden, teacher head with logits of the given standard deviation."""
    tokens, vocab, student_width, teacher_width = shape
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(rows: int, width: int, scale: float, dtype: torch.dtype) -> Tensor:
        return (torch.randn(rows, width, device="cuda", generator=generator) * scale).to(dtype)

    return [
        draw(tokens, student_width, 1.0, student),
        draw(vocab, student_width, std / student_width**0.5, student),
        draw(tokens, teacher_width, 1.0, teacher),
        draw(vocab, teacher_width, std / teacher_width**0.5, teacher),
    ]


def float64_reference(heads: list[Tensor], kind: str, weights: Tensor, valid: int, **options) -> dict[str, Tensor]:
    """Loss, per-token divergence, log-probabilities and both gradients by plain autograd in float64."""
    hidden, weight, teacher_hidden, teacher_weight = (tensor.double() for tensor in heads)
    hidden.requires_grad_()
    weight.requires_grad_()
    student_logits = hidden @ weight[:valid].T
    teacher_logits = teacher_hidden @ teacher_weight[:valid].T
    value = divergence(student_logits, teacher_logits, kind, **options)
    (value * weights.double()).sum().backward()
    temperature = options.get("temperature", 1.0)
    return {
        "divergence": value.detach(),
        "log_s": (student_logits.detach() / temperature).log_softmax(-1),
        "log_t": (teacher_logits / temperature).log_softmax(-1),
        "grad_hidden": hidden.grad,
        "grad_weight": weight.grad,
    }


def run_fused(heads: list[Tensor], kind: str, weights: Tensor, **options) -> tuple[HeadDivergence, Tensor, Tensor]:
    """Output and both gradients, in fp32: what autograd would round to the inputs' dtype is not part of the bound."""
    hidden, weight, teacher_hidden, teacher_weight = heads
    hidden = hidden.float().requires_grad_()
    weight = weight.clone().requires_grad_()
    weight.grad_dtype = torch.float32
    output = head_divergence(
        hidden, weight, teacher_hidden, teacher_weight, kind, token_weights=weights, backend="fused", **options
    )
    output.loss_sum.backward()
    return output, hidden.grad, weight.grad


def relative_error(value: Tensor, reference: Tensor) -> float:
    value, reference = value.detach().double(), reference.detach()
    return float((value - reference).norm() / reference.norm())


def weights_of(name: str, tokens: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(5)
    drawn = torch.rand(tokens, device="cuda", generator=generator)
    if name == "ones":
        return torch.ones(tokens, device="cuda")
    if name == "mask":
        return (drawn < 0.5).float().index_fill(0, torch.tensor([0], device="cuda"), 1.0)
    return (drawn + 0.1) * 3e-6  # rewards times importance over a global count


@pytest.mark.parametrize(
    ("kind", "dtypes", "weighting", "shape"),
    list(itertools.product(KINDS, ((BF16, BF16), (FP16, FP16), (FP16, BF16)), ("ones", "mask", "tiny"), SHAPES)),
    ids=lambda value: (
        "-".join(str(part).removeprefix("torch.") for part in value) if isinstance(value, tuple) else value
    ),
)
def test_outputs_and_gradients_match_float64(kind, dtypes, weighting, shape):
    heads = make_heads(shape, *dtypes)
    tokens, vocab = shape[:2]
    weights = weights_of(weighting, tokens)
    ids = torch.randint(0, vocab, (tokens,), device="cuda")
    expected = float64_reference(heads, kind, weights, vocab, beta=0.3)
    output, grad_hidden, grad_weight = run_fused(heads, kind, weights, beta=0.3, token_ids=ids)

    assert relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND
    assert relative_error(output.divergence, expected["divergence"]) < VALUE_BOUND
    assert relative_error(output.loss_sum, (expected["divergence"] * weights).sum()) < VALUE_BOUND
    log_s, log_t, row = expected["log_s"], expected["log_t"], torch.arange(tokens, device="cuda")
    assert relative_error(output.student_entropy, -(log_s.exp() * log_s).sum(-1)) < VALUE_BOUND
    assert relative_error(output.teacher_entropy, -(log_t.exp() * log_t).sum(-1)) < VALUE_BOUND
    assert relative_error(output.student_log_prob, log_s[row, ids]) < VALUE_BOUND
    assert relative_error(output.teacher_log_prob, log_t[row, ids]) < VALUE_BOUND
    assert not output.nonfinite.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("temperature", [0.6, 2.0])
def test_temperature_and_logit_storage(kind, precision, temperature):
    heads = make_heads(SHAPES[2], BF16, BF16)
    weights = weights_of("ones", 300)
    expected = float64_reference(heads, kind, weights, 5003, beta=0.7, temperature=temperature)
    output, grad_hidden, grad_weight = run_fused(
        heads, kind, weights, beta=0.7, temperature=temperature, precision=precision
    )
    assert output.precision == precision
    assert relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND
    assert relative_error(output.divergence, expected["divergence"]) < VALUE_BOUND


@pytest.mark.parametrize("kind", KINDS)
def test_padded_entries_take_no_part_and_get_no_gradient(kind):
    heads = make_heads((41, 1280, 64, 128), BF16, BF16)
    heads[3] = torch.cat([heads[3], heads[3][:64]])  # the teacher's vocabulary is padded further
    valid = 1271
    heads[1][valid:] = 50.0
    heads[3][valid:] = -50.0
    weights = weights_of("ones", 41)
    expected = float64_reference(heads, kind, weights, valid)
    output, grad_hidden, grad_weight = run_fused(heads, kind, weights, valid_vocab=valid)
    assert relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND
    assert relative_error(output.divergence, expected["divergence"]) < VALUE_BOUND
    assert torch.count_nonzero(grad_weight[valid:]) == 0


@pytest.mark.parametrize("beta", [1e-4, 0.5, 1 - 1e-6])
def test_a_mixture_close_to_either_side(beta):
    heads = make_heads(SHAPES[2], FP16, FP16, std=6.0)
    weights = weights_of("ones", 300)
    expected = float64_reference(heads, "jsd", weights, 5003, beta=beta)
    output, grad_hidden, grad_weight = run_fused(heads, "jsd", weights, beta=beta)
    assert torch.isfinite(grad_weight).all()
    assert relative_error(grad_hidden, expected["grad_hidden"]) < max(GRADIENT_BOUND, output.relative_error)
    assert float((output.divergence - expected["divergence"]).abs().max()) < 1e-5 + VALUE_BOUND * float(
        expected["divergence"].max()
    )


@pytest.mark.parametrize("exponent", [-60, 60])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_the_size_of_the_weights_changes_no_digit(exponent, dtype):
    heads = make_heads(SHAPES[2], dtype, dtype)
    _, grad_hidden, grad_weight = run_fused(heads, "reverse_kl", weights_of("ones", 300))
    _, scaled_hidden, scaled_weight = run_fused(heads, "reverse_kl", weights_of("ones", 300) * 2.0**exponent)
    assert torch.equal(scaled_hidden, grad_hidden * 2.0**exponent)
    assert torch.equal(scaled_weight, grad_weight * 2.0**exponent)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_too_small_for_fp16_is_scaled_up(kind):
    heads = make_heads((200, 5003, 256, 256), FP16, FP16)
    heads[2] = heads[0].clone()
    heads[3] = (heads[1].float() * (1 + 1e-3 * torch.randn_like(heads[1].float()))).to(FP16)
    weights = weights_of("ones", 200)
    weights[1:] = 1e-2  # one token holds the scale
    heads[2][0], heads[0][0] = 0.0, 0.0  # and has no gradient itself
    expected = float64_reference(heads, kind, weights, 5003)
    output, grad_hidden, grad_weight = run_fused(heads, kind, weights)
    assert output.precision == "fp32"
    assert relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND


def peaked_heads(dtype: torch.dtype) -> list[Tensor]:
    """Logits with maxima near 40 and low entropy: each side prefers one token, in a quarter of the rows another one."""
    heads = make_heads((256, 20000, 256, 512), dtype, dtype, std=6.0)
    favourite = torch.arange(256, device="cuda") * 7
    for side, offset in ((0, 0), (2, 1)):
        hidden, weight = heads[side].float(), heads[side + 1].float()
        chosen = torch.where(torch.arange(256, device="cuda") % 4 == 0, favourite + offset, favourite)
        row = weight[chosen]
        missing = 40.0 - (hidden * row).sum(1)
        heads[side] = (hidden + row * (missing / row.square().sum(1)).unsqueeze(1)).to(dtype)
    return heads


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_peaked_logits_stay_within_the_bound_in_fp16(kind, dtype):
    heads = peaked_heads(dtype)
    weights = weights_of("ones", 256)
    expected = float64_reference(heads, kind, weights, 20000)
    output, grad_hidden, grad_weight = run_fused(heads, kind, weights)
    assert output.precision == "fp16"
    assert float(output.student_entropy.mean()) < 0.5
    assert relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_close_to_its_teacher_is_redone_with_fp32_logits(kind):
    heads = make_heads((200, 5003, 256, 256), FP16, FP16)
    heads[2] = heads[0].clone()
    heads[3] = (heads[1].float() * (1 + 1e-3 * torch.randn_like(heads[1].float()))).to(FP16)
    weights = weights_of("ones", 200)
    expected = float64_reference(heads, kind, weights, 5003)
    output, grad_hidden, grad_weight = run_fused(heads, kind, weights)
    assert output.precision == "fp32"
    assert relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_equal_to_its_teacher_has_no_divergence_and_no_gradient(kind):
    heads = make_heads((64, 1271, 64, 64), BF16, BF16)
    heads[2:] = heads[:2]
    output, grad_hidden, grad_weight = run_fused(heads, kind, weights_of("ones", 64))
    assert float(output.divergence.abs().max()) < 1e-5
    assert float(grad_hidden.abs().max()) < 1e-5
    assert float(grad_weight.abs().max()) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimated_error_covers_the_measured_one(kind):
    heads = make_heads((512, 5003, 256, 512), FP16, FP16)
    weights = weights_of("ones", 512)
    expected = float64_reference(heads, kind, weights, 5003)
    output, grad_hidden, _ = run_fused(heads, kind, weights)
    measured = relative_error(grad_hidden, expected["grad_hidden"])
    assert measured < 1.5 * output.relative_error
    assert output.relative_error < 4 * measured


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_wide_logits_stay_within_the_bound(kind, dtype):
    heads = make_heads((256, 1271, 64, 64), dtype, dtype, std=25.0)
    weights = weights_of("ones", 256)
    expected = float64_reference(heads, kind, weights, 1271)
    output, grad_hidden, grad_weight = run_fused(heads, kind, weights)
    assert relative_error(output.divergence, expected["divergence"]) < VALUE_BOUND
    assert relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_absurd_logits_give_finite_numbers_and_an_error_that_is_said(dtype):
    heads = make_heads((64, 1271, 64, 64), dtype, dtype, std=3000.0)
    weights = weights_of("ones", 64)
    expected = float64_reference(heads, "reverse_kl", weights, 1271)
    output, grad_hidden, grad_weight = run_fused(heads, "reverse_kl", weights)
    assert relative_error(output.divergence, expected["divergence"]) < VALUE_BOUND
    assert torch.isfinite(grad_hidden).all()
    assert torch.isfinite(grad_weight).all()
    assert output.precision == "fp32"
    within_bound = relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
    assert within_bound or output.relative_error > GRADIENT_BOUND


@pytest.mark.parametrize("offset", [-300.0, 300.0])
def test_logits_far_from_zero_are_as_good_as_those_around_it(offset):
    heads = make_heads((64, 1271, 64, 64), BF16, BF16)
    for side in (0, 2):
        heads[side][:, 0] = 16.0
        heads[side + 1][:, 0] = offset / 16.0
    weights = weights_of("ones", 64)
    expected = float64_reference(heads, "reverse_kl", weights, 1271)
    output, grad_hidden, grad_weight = run_fused(heads, "reverse_kl", weights)
    assert relative_error(output.divergence, expected["divergence"]) < VALUE_BOUND
    # The common part of the head takes the rows' gradients, which sum to 0: its column is rounding, the rest is not.
    assert relative_error(grad_hidden[:, 1:], expected["grad_hidden"][:, 1:]) < GRADIENT_BOUND
    assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND


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
        output = head_divergence(hidden, weight, *heads[2:], "reverse_kl", token_weights=weights, workspace_gib=0.08)
        peak = torch.cuda.max_memory_allocated() - before
        del output
        peaks.append(peak - 33001 * 64 * 4 - hidden.nbytes)
    assert max(peaks) < 0.08 * 2**30 + 48 * 2**20  # cuBLAS keeps up to 32 MiB of its own, per-token numbers the rest


def test_no_tokens_still_give_a_graph_and_gradients_of_zero():
    heads = make_heads((0, 1271, 64, 128), BF16, BF16)
    hidden, weight = heads[0].requires_grad_(), heads[1].requires_grad_()
    output = head_divergence(
        hidden, weight, *heads[2:], "jsd", token_weights=torch.ones(0, device="cuda"), backend="fused"
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
        *heads, "reverse_kl", token_weights=torch.ones(4, device="cuda"), valid_vocab=1271, token_ids=ids
    )
    assert torch.isfinite(output.student_log_prob).tolist() == [True, True, False, False]
    assert torch.isfinite(output.teacher_log_prob).tolist() == [True, True, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_without_gradient_equal_those_with(kind):
    heads = make_heads((300, 5003, 136, 72), BF16, BF16)
    weights = weights_of("tiny", 300)
    with_gradient, _, _ = run_fused(heads, kind, weights)
    with torch.no_grad():
        scores = head_divergence(*heads, kind, token_weights=weights, backend="fused")
    assert not scores.loss_sum.requires_grad
    for one, other in zip(scores[1:4], with_gradient[1:4], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_two_passes_train_on_the_kept_tokens_only():
    heads = make_heads((300, 5003, 136, 72), BF16, BF16)
    weights = weights_of("tiny", 300)
    hidden, weight = heads[0].requires_grad_(), heads[1].requires_grad_()
    output = two_pass_divergence(
        hidden,
        weight,
        *heads[2:],
        "reverse_kl",
        token_weights=weights,
        keep=lambda scores: scores.student_entropy > scores.student_entropy.median(),
    )
    output.loss_sum.backward()
    kept = (output.student_entropy > output.student_entropy.median()).float()
    assert 0 < kept.sum() < 300
    expected = float64_reference([t.detach() for t in heads], "reverse_kl", weights * kept, 5003)
    assert relative_error(hidden.grad, expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(weight.grad, expected["grad_weight"]) < GRADIENT_BOUND
    assert torch.count_nonzero(hidden.grad[kept == 0]) == 0
    assert relative_error(output.divergence, expected["divergence"]) < VALUE_BOUND


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_the_backward_scales_by_what_comes_from_above_and_runs_once(dtype):
    heads = make_heads((300, 5003, 136, 72), dtype, dtype)
    weights = weights_of("ones", 300)
    _, grad_hidden, grad_weight = run_fused(heads, "reverse_kl", weights)
    hidden, weight = heads[0].float().requires_grad_(), heads[1].requires_grad_()
    output = head_divergence(hidden, weight, *heads[2:], "reverse_kl", token_weights=weights, backend="fused")
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
