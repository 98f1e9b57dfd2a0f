"""Attention over packed rows without a mask: what transformers' sdpa gives with its dense mask, forwards and backwards."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from opd.update.attention import VARLEN, row_arguments
from opd.update.head_engine import compile_layers

LENGTHS = [5, 130, 1, 257, 64]


def _model(attention: str, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=97, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, attn_implementation=attention,
    )  # fmt: skip
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)


def _packed() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 97, (1, sum(LENGTHS)), generator=generator).cuda()
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None].cuda()
    return {"input_ids": ids, "position_ids": positions}


def _outcome(model: torch.nn.Module, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the gradient of the first layer's key projection."""
    with torch.autocast("cuda", enabled=False):
        logits = model(**inputs, attention_mask=None, use_cache=False).logits
    logits.float().log_softmax(-1)[..., 3].sum().backward()
    return logits.detach().float(), model.model.layers[0].self_attn.k_proj.weight.grad.float()


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.fixture(scope="module")
def exact() -> tuple[torch.Tensor, torch.Tensor]:
    return _outcome(_model("sdpa", torch.float32), **_packed())


@pytest.fixture(scope="module")
def rounded(exact) -> list[float]:
    """Return the cost of bf16 alone: sdpa's own distance from fp32."""
    return [_distance(a, b) for a, b in zip(_outcome(_model("sdpa"), **_packed()), exact, strict=True)]


@pytest.mark.parametrize("compiled", [False, True])
def test_packed_rows_see_themselves_and_their_past_alone(exact, rounded, compiled):
    model = _model(VARLEN)
    if compiled:
        assert compile_layers(model) == 3
    bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], device="cuda")
    inputs = _packed() | row_arguments(VARLEN, bounds, sum(LENGTHS))
    found = [_distance(a, b) for a, b in zip(_outcome(model, **inputs), exact, strict=True)]
    # Same rounding, other order of sums; a row that saw its neighbour would be off by tens of per cent.
    assert found[0] < 1.5 * rounded[0] + 1e-3
    assert found[1] < 1.5 * rounded[1] + 1e-3
