"""The fused divergence by ranks that share the heads, several on one GPU as threads, against float64."""

import itertools

import pytest
import torch
from tests.gpu import needs
from tests.gpu.reference import (
    BF16,
    FP16,
    GRADIENT_BOUND,
    KINDS,
    VALUE_BOUND,
    float64_reference,
    make_heads,
    relative_error,
    weights_of,
)
from tests.losses.thread_ranks import run_ranks
from torch import Tensor, distributed

from opd.losses.vocab_parallel import vocab_parallel_divergence, vocab_shard

needs.hopper()

COUNTS = ((300,), (131, 169), (200, 0, 100))
SHAPES = ((300, 5003, 136, 72), (300, 33001, 256, 512))
BETA = 0.3


def run_slices(heads: list[Tensor], kind: str, weights: Tensor, counts: tuple[int, ...], **options) -> dict:
    """Outputs and gradients of all ranks together, and each rank's report."""
    vocab = len(heads[1])

    def rank_result(rank: int):
        shard, own = vocab_shard(vocab, rank, len(counts)), slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        hidden, weight = heads[0][own].float().requires_grad_(), heads[1][shard].clone().requires_grad_()
        weight.grad_dtype = torch.float32
        output = vocab_parallel_divergence(
            hidden, weight, heads[2][own], heads[3][shard], kind,
            vocab=vocab, group=distributed.group.WORLD, token_weights=weights[own], beta=BETA, chunk_size=64,
            **{"workspace_gib": 0.1, "backend": "fused", "temperature": 1.0, **options},
        )  # fmt: skip
        torch.cuda.synchronize()
        with torch.autograd.set_multithreading_enabled(False):
            output.loss_sum.backward()
        return output, hidden.grad, weight.grad

    outputs, hidden, weight = zip(*run_ranks(len(counts), rank_result), strict=True)
    return {
        "grad_hidden": torch.cat(hidden),
        "grad_weight": torch.cat(weight),
        "divergence": torch.cat([output.divergence for output in outputs]),
        "nonfinite": torch.cat([output.nonfinite for output in outputs]),
        "precisions": [output.precision for output in outputs],
    }


@pytest.mark.parametrize(
    ("kind", "dtype", "counts", "shape"),
    list(itertools.product(KINDS, (BF16, FP16), COUNTS, SHAPES)),
    ids=lambda value: str(value).replace(" ", ""),
)
def test_slices_match_float64(kind, dtype, counts, shape):
    heads = make_heads(shape, dtype, dtype)
    weights = weights_of("mask", shape[0])
    expected = float64_reference(heads, kind, weights, shape[1], beta=BETA)
    found = run_slices(heads, kind, weights, counts)
    errors = {
        name: relative_error(found[name], expected[name]) for name in ("grad_hidden", "grad_weight", "divergence")
    }
    print(errors, found["precisions"])
    assert max(errors["grad_hidden"], errors["grad_weight"]) < GRADIENT_BOUND
    assert errors["divergence"] < VALUE_BOUND


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_temperature_storage_and_small_workspaces(kind, precision):
    heads = make_heads(SHAPES[1], BF16, BF16)
    weights = weights_of("ones", 300)
    expected = float64_reference(heads, kind, weights, SHAPES[1][1], beta=BETA, temperature=0.6)
    found = run_slices(
        heads,
        kind,
        weights,
        (131, 169),
        temperature=0.6,
        precision=precision,
        workspace_gib=0.05,
        max_expected_error=1.0,
    )
    assert found["precisions"] == [precision] * 2
    assert relative_error(found["grad_hidden"], expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(found["grad_weight"], expected["grad_weight"]) < GRADIENT_BOUND


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_turns_to_fp32_logits_where_the_student_is_close_to_its_teacher(kind):
    heads = make_heads((200, 5003, 256, 256), FP16, FP16)
    heads[2] = heads[0].clone()
    heads[3] = (heads[1].float() * (1 + 1e-3 * torch.randn_like(heads[1].float()))).to(FP16)
    weights = weights_of("ones", 200)
    expected = float64_reference(heads, kind, weights, 5003, beta=BETA)
    found = run_slices(heads, kind, weights, (131, 69))
    assert found["precisions"] == ["fp32"] * 2
    assert relative_error(found["grad_hidden"], expected["grad_hidden"]) < GRADIENT_BOUND
    assert relative_error(found["grad_weight"], expected["grad_weight"]) < GRADIENT_BOUND


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_reported_on_its_rank_and_does_not_spread(value):
    heads = make_heads((41, 1271, 64, 128), BF16, BF16)
    weights = weights_of("ones", 41)
    without = weights.clone()
    without[[3, 30]] = 0.0
    clean = run_slices(heads, "reverse_kl", without, (20, 21))
    heads[0][3, 5] = heads[2][30, 0] = value
    found = run_slices(heads, "reverse_kl", weights, (20, 21))
    assert found["nonfinite"].nonzero().flatten().tolist() == [3, 30]
    assert torch.equal(found["grad_hidden"], clean["grad_hidden"])
    assert torch.equal(found["grad_weight"], clean["grad_weight"])
