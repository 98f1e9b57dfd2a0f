"""Entropies of rows of logits in Triton, each row read once. Imports triton, so it is loaded only where a CUDA device is."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_NUM_WARPS = 8


@triton.jit
def _entropies(logits, entropies, stride, vocab, inverse_temperature, BLOCK: tl.constexpr):
    """One program a row. Each lane keeps the maximum m, sum e^(x - m) and sum e^(x - m) (x - m) of its entries so far."""
    row = logits + tl.program_id(0).to(tl.int64) * stride
    at = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total, moment = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab, BLOCK):
        inside = start + at < vocab
        x = tl.load(row + start + at, mask=inside, other=-float("inf")) * inverse_temperature
        higher = tl.maximum(top, x)
        step, below = top - higher, x - higher
        share, e = tl.exp(step), tl.exp(below)
        moment = share * (moment + step * total) + tl.where(e > 0, e * below, 0.0)
        total = share * total + e
        top = higher
    step = top - tl.max(top, 0)
    share = tl.exp(step)
    whole = tl.sum(share * total, 0)
    tl.store(entropies + tl.program_id(0), tl.log(whole) - tl.sum(share * (moment + step * total), 0) / whole)


def row_entropies(logits: Tensor, vocab: int, temperature: float) -> Tensor:
    """[n] float32 entropy in nats of softmax(logits[:, :vocab] / temperature); nan where an entry is nan or +inf.

    Args:
        logits: [n, V] float32, rows contiguous in themselves, V >= vocab.
    """
    out = torch.empty(len(logits), device=logits.device)
    if len(logits):
        _entropies[(len(logits),)](
            logits, out, logits.stride(0), vocab, 1.0 / temperature, BLOCK=_BLOCK, num_warps=_NUM_WARPS
        )
    return out
