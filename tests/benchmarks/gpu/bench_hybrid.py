"""Qwen3.5 with torch's linear attention and with fla's: verdict of the probe, time, memory and errors of an update's passes.

Weights are random; errors are relative norms against fp32. fla refuses a backward on Hopper that Triton 3.4 to 3.7.0 may
miscompile: the bench lifts this guard, and the errors judge. Fast rows need fla-core and einops. Without a GPU all is tiny:

    PYTHONPATH=src:. python -m tests.benchmarks.gpu.bench_hybrid
"""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.gpu.bench_update import GIB, ON_GPU, timed  # before verl and transformers
from tests.gpu.facts import machine, write_record
from torch import Tensor
from torch.nn.functional import cross_entropy, pad, silu
from transformers.models.qwen3_5 import modeling_qwen3_5 as family

from opd.update.head_engine import compile_layers
from opd.update.packing import may_pack, own_attention

DEVICE, ATTENTION, DTYPE = ("cuda", "varlen", torch.bfloat16) if ON_GPU else ("cpu", "sdpa", torch.float32)
ROWS, PACK, TOKENS, WIDTH, LAYERS, HEAD = (16, 8, 2048, 1536, 12, 128) if ON_GPU else (4, 2, 96, 64, 4, 16)
FLA = (family.chunk_gated_delta_rule, family.FusedRMSNormGated)


def conv_of_torch(x: Tensor, weight: Tensor, seq_idx: Tensor | None, **_: Any) -> Tensor:
    out = x.float() * weight[:, -1:]  # [1, D, T]
    for back in range(1, weight.shape[1]):
        term = pad(x, (back, 0))[..., :-back].float() * weight[:, -1 - back, None]
        out = out + (term if seq_idx is None else term * (pad(seq_idx, (back, 0), value=-1)[:, :-back] == seq_idx))
    return silu(out).to(x.dtype)


def conv_of_fla(x: Tensor, weight: Tensor, seq_idx: Tensor | None, **_: Any) -> Tensor:
    from fla.modules.causal_conv1d import causal_conv1d

    bounds = None if seq_idx is None else pad(seq_idx[0].bincount().cumsum(0), (1, 0))
    return causal_conv1d(x.transpose(1, 2), weight, activation="silu", cu_seqlens=bounds)[0].transpose(1, 2)


def build(kernels: tuple[Any, Any], conv: Any = None, dtype: torch.dtype = DTYPE) -> Any:
    """Return a model of 0.6 billion weights, rounded to bf16, with states that reach over hundreds of tokens."""
    family.chunk_gated_delta_rule, family.FusedRMSNormGated = kernels
    sizes = {"hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_hidden_layers": LAYERS, "vocab_size": 32_768}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 2 * HEAD, "tie_word_embeddings": True}
    torch.manual_seed(0)
    with torch.device(DEVICE):
        config = family.Qwen3_5TextConfig(**sizes, **heads, linear_key_head_dim=HEAD, linear_value_head_dim=HEAD)
        model = family.Qwen3_5ForCausalLM(config).to(torch.bfloat16).to(dtype)
    for layer in (layer.linear_attn for layer in model.model.layers if layer.layer_type == "linear_attention"):
        layer.A_log.data.copy_(torch.linspace(-6, 1, len(layer.A_log)))
        layer.causal_conv1d_fn = conv
    model.set_attn_implementation(ATTENTION if dtype == DTYPE else "sdpa")
    return model


def states(model: Any, rows: Any, *, own: bool = False) -> Tensor:
    """Return the hidden states of rows in one pack; `own` attention does not learn where they begin."""
    sizes = torch.tensor([len(row) for row in rows])
    row, bounds = torch.arange(len(rows)).repeat_interleave(sizes), pad(sizes.cumsum(0), (1, 0))
    inputs = {"input_ids": torch.cat(list(rows))[None], "position_ids": (torch.arange(len(row)) - bounds[row])[None]}
    inputs |= {} if own else {"cu_seq_lens_q": bounds.int(), "seq_idx": row.int()[None]}
    cast = torch.autocast(DEVICE, torch.bfloat16, enabled=model.dtype == torch.bfloat16)
    with own_attention(model.config) if own else nullcontext(), cast:
        return model.model(**{name: each.to(DEVICE) for name, each in inputs.items()}, use_cache=False)[0][0]


def passes(model: Any, rows: list[Tensor], size: int) -> list[Tensor]:
    """Return logits of every 16th token, and the gradients of a likelihood, of packs of `size` rows."""
    model.zero_grad()
    logits = []
    for pack in (rows[begin : begin + size] for begin in range(0, len(rows), size)):
        found = model.lm_head(states(model, pack).to(model.dtype)).float()
        cross_entropy(found, torch.cat(pack).to(DEVICE), reduction="sum").div(TOKENS).backward()
        logits.append(found.detach()[::16])
    return [torch.cat(logits), *(weight.grad for weight in model.parameters())]


def measure(model: Any, compiles: bool, rows: list[Tensor], few: list[Tensor], exact: list[Tensor]) -> dict[str, Any]:
    forwards = {"packed": partial(states, model), "alone": partial(states, model, own=True)}
    verdict = may_pack(model, "Qwen3.5", dtype=DTYPE, **forwards)
    size, compiled = PACK if verdict else 1, compile_layers(model) if compiles else 0
    norms = torch.tensor([[(a - b).norm(), b.norm()] for a, b in zip(passes(model, few, size), exact, strict=True)])
    logits, gradients = norms[0], norms[1:].norm(dim=0)
    errors = {"logits_error": float(logits[0] / logits[1]), "gradient_error": float(gradients[0] / gradients[1])}
    passes(model, rows[:PACK], size)  # compiles and tunes
    taken = timed(lambda: passes(model, rows, size))
    cost = {"seconds": taken.seconds, "peak_gib": taken.peak / GIB, "compiled_layers": compiled}
    return {"may_pack": verdict, "rows_of_a_pack": size, **cost, **errors}


def main() -> None:
    facts = machine("torch", "triton", "transformers", "fla-core") if ON_GPU else {"device": "CPU, tiny rows"}
    cases: dict[str, Any] = {"torch": ((None, None), None, False)}
    if FLA[0]:
        from fla.ops.common import chunk_o

        facts["guard"] = str(chunk_o.IS_NVIDIA_HOPPER and chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1)
        chunk_o.TRITON_ABOVE_3_7_1 = True
        cases |= {"fla": (FLA, None, False), "fla, its conv": (FLA, conv_of_fla, False)}
        cases["fla, torch's conv"] = (FLA, torch.compile(conv_of_torch, dynamic=True), False)
        cases["fla, torch's conv, compiled layers"] = (FLA, conv_of_torch, True)
    rows = list(torch.randint(0, 32_768, (ROWS, TOKENS), generator=torch.Generator().manual_seed(1)))
    few, found = [rows[0], rows[1][: TOKENS // 2]], {}
    exact = [each.detach().clone() for each in passes(build((None, None), dtype=torch.float32), few, 1)]
    for name, (kernels, conv, compiles) in cases.items():
        try:
            found[name] = measure(build(kernels, conv), compiles, rows, few, exact)
        except Exception as problem:  # noqa: BLE001  # the other rows still count
            found[name] = {"problem": f"{type(problem).__name__}: {str(problem)[:400]}"}
        print(f"{name}: {found[name]}", flush=True)
        write_record(Path("build/bench-gpu/hybrid.json"), {"environment": facts, "rows": found})


if __name__ == "__main__":
    main()
