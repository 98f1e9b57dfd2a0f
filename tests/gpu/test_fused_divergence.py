"""Outputs and gradients of the fused divergence against float64."""

import itertools

import pytest
import torch
from tests.gpu import needs
from tests.gpu.reference import (
    BF16,
    FP16,
    GRADIENT_BOUND,
    KINDS,
    SHAPES,
    VALUE_BOUND,
    float64_reference,
    make_heads,
    relative_error,
    run_fused,
    weights_of,
)
from tests.losses.products import ProductSizes
from torch import Tensor

needs.hopper()


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


# Entries that count, rows of the student's head, rows of the teacher's: real tokenizers, a prime, and very few.
TOKENIZERS = {
    "Qwen3": (151_669, 151_936, 151_936),
    "Qwen2.5, 7B to 1.5B": (151_665, 151_936, 152_064),
    "Llama 3": (128_256, 128_256, 128_256),
    "Gemma 3": (262_144, 262_208, 262_208),
    "GPT-2": (50_257, 50_257, 50_257),
    "a prime": (131_071, 131_072, 131_136),
    "a tile and one": (257, 257, 320),
    "one vector": (7, 8, 7),
    "one entry": (1, 1, 64),
}


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_every_tokenizer_s_entries_and_nothing_behind_them(tokenizer, precision):
    valid, student_rows, teacher_rows = TOKENIZERS[tokenizer]
    heads = make_heads((130, max(student_rows, teacher_rows), 64, 128), BF16, BF16)
    heads[1], heads[3] = heads[1][:student_rows].clone(), heads[3][:teacher_rows].clone()
    for weight in (heads[1], heads[3]):
        weight[valid:] = 0.0  # what float64 multiplies by a gradient of 0
    weights = weights_of("ones", 130)
    expected = float64_reference(heads, "reverse_kl", weights, valid)
    for weight in (heads[1], heads[3]):
        weight[valid:] = float("nan")
    poison = torch.full((2**28,), float("nan"), device="cuda")  # the workspace will lie here
    del poison
    with ProductSizes() as products:
        output, grad_hidden, grad_weight = run_fused(
            heads, "reverse_kl", weights, valid_vocab=valid, precision=precision, max_expected_error=1.0
        )
    assert grad_weight.shape == (student_rows, 64)
    assert torch.count_nonzero(grad_weight[valid:]) == 0
    if valid % 8 and valid > 1:  # cuBLAS takes three times as long over an odd number of entries
        assert valid not in products.sizes
    if valid > 1:
        assert relative_error(grad_hidden, expected["grad_hidden"]) < GRADIENT_BOUND
        assert relative_error(grad_weight, expected["grad_weight"]) < GRADIENT_BOUND
        assert relative_error(output.divergence, expected["divergence"]) < VALUE_BOUND
    else:  # the only entry is certain: no divergence, no gradient
        assert float(grad_hidden.abs().max()) < 1e-5
        assert float(output.divergence.abs().max()) < 1e-5


@pytest.mark.parametrize("beta", [1e-4, 0.5, 1 - 1e-6])
def test_a_mixture_close_to_either_side(beta):
    heads = make_heads(SHAPES[2], FP16, FP16, std=6.0)
    weights = weights_of("ones", 300)
    expected = float64_reference(heads, "jsd", weights, 5003, beta=beta)
    output, grad_hidden, grad_weight = run_fused(heads, "jsd", weights, beta=beta)
    assert torch.isfinite(grad_weight).all()
    assert relative_error(grad_hidden, expected["grad_hidden"]) < max(GRADIENT_BOUND, output.expected_error)
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
def test_the_expected_error_is_near_the_measured_one_where_rows_are_alike(kind):
    heads = make_heads((512, 5003, 256, 512), FP16, FP16)
    weights = weights_of("ones", 512)
    expected = float64_reference(heads, kind, weights, 5003)
    output, grad_hidden, _ = run_fused(heads, kind, weights)
    measured = relative_error(grad_hidden, expected["grad_hidden"])
    assert measured < 1.5 * output.expected_error
    assert output.expected_error < 4 * measured


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
    assert within_bound or output.expected_error > GRADIENT_BOUND


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
