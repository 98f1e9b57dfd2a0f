"""Entropies of rows of logits in Triton, each row read once. Imports triton, so it is loaded only where a CUDA device is.

SHIFT is the block of logits that are stored as distances below their block's maximum (`head_logits`); 0: plain ones.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from opd.losses.cuda.logits_kernel import VOCAB_BLOCK, head_logits
from opd.losses.cuda.row_kernel import Logits
from opd.losses.padded_head import padded_entries

_BLOCK = 4096
_NUM_WARPS = 8


@triton.jit
def _entropies(
    logits,
    block_max,
    entropies,
    stride,
    num_blocks,
    vocab,
    inverse_temperature,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """One program a row. Each lane keeps the maximum m, sum e^(x - m) and sum e^(x - m) (x - m) of its entries so far."""
    row = logits + tl.program_id(0).to(tl.int64) * stride
    tops = block_max + tl.program_id(0).to(tl.int64) * num_blocks
    at = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total, moment = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab, BLOCK):
        inside = start + at < vocab
        x = tl.load(row + start + at, mask=inside, other=-float("inf")).to(tl.float32)
        if SHIFT:
            x += tl.load(tops + (start + at) // SHIFT, mask=inside, other=0.0)
        x *= inverse_temperature
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


def row_entropies(logits: Logits, temperature: float) -> Tensor:
    """[n] float32 entropy in nats of each row's softmax(logits / temperature); nan where an entry is nan or +inf."""
    values = logits.values
    num_rows, vocab = values.shape
    out = torch.empty(num_rows, device=values.device)
    if num_rows:
        tops = logits.block_max  # None: the logits are not shifted
        _entropies[(num_rows,)](
            values,
            values if tops is None else tops,
            out,
            values.stride(0),
            0 if tops is None else tops.shape[1],
            vocab,
            1.0 / temperature,
            BLOCK=_BLOCK,
            SHIFT=0 if tops is None else VOCAB_BLOCK,
            num_warps=_NUM_WARPS,
        )
    return out


def head_entropies(hidden: Tensor, weight: Tensor, *, temperature: float, chunk_size: int) -> list[Tensor]:
    """Entropies of softmax(hidden @ weight.T / temperature), a part for each `chunk_size` rows of fp16 logits.

    Args:
        hidden: [T, d]. weight: [V, d] bf16 or fp16, only the entries that count.
    """
    rows, vocab = min(chunk_size, len(hidden)), len(weight)
    values = torch.empty(rows, padded_entries(vocab), device=weight.device, dtype=torch.float16)[:, :vocab]
    block_max = torch.empty(rows, triton.cdiv(vocab, VOCAB_BLOCK), device=weight.device)
    parts = []
    for states in hidden.to(weight.dtype).split(max(rows, 1)):
        logits = Logits(values[: len(states)], block_max[: len(states)])
        if len(states):
            head_logits(states, weight, logits.values, logits.block_max)
        parts.append(row_entropies(logits, temperature))
    return parts
