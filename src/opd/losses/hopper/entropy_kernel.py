"""Entropies of rows of logits in Triton, each row read once. Imports triton, so it is loaded only where a CUDA device is.

Logits are as `head_logits` stores them with `block_max`: distances below the maximum of their block of SHIFT.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from opd.losses.hopper.logits_kernel import VOCAB_BLOCK, head_logits
from opd.losses.hopper.row_kernel import Logits
from opd.losses.padded_head import padded_entries

_BLOCKS = 16  # of the vocabulary, in registers at once: a warp reads one in a load of 16 bytes a lane
_TOPS = 1024
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
    BLOCKS: tl.constexpr,
    TOPS: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """One program a row: its maximum from those of its blocks, then sum e^(x - m) and sum e^(x - m) (x - m)."""
    row = logits + tl.program_id(0).to(tl.int64) * stride
    tops = block_max + tl.program_id(0).to(tl.int64) * num_blocks
    whole = vocab // SHIFT
    of_blocks = tl.full((TOPS,), -1e30, tl.float32)
    for start in range(0, whole, TOPS):
        block = start + tl.arange(0, TOPS)
        of_blocks = tl.maximum(of_blocks, tl.load(tops + block, mask=block < whole, other=-1e30))
    # A last block that the vocabulary's end cuts: its maximum may be that of the zeros behind it.
    cut = whole * SHIFT + tl.arange(0, SHIFT)
    last = tl.load(row + cut, mask=cut < vocab, other=-float("inf")).to(tl.float32)
    last += tl.load(tops + whole, mask=whole < num_blocks, other=0.0)
    top = tl.maximum(tl.max(of_blocks, 0), tl.max(last, 0))
    total, moment = tl.zeros((BLOCKS, SHIFT), tl.float32), tl.zeros((BLOCKS, SHIFT), tl.float32)
    for start in range(0, num_blocks, BLOCKS):
        block = start + tl.arange(0, BLOCKS)[:, None]
        at = block * SHIFT + tl.arange(0, SHIFT)[None, :]
        # A row's padding is read too, so that a load is 16 bytes whatever the vocabulary.
        x = tl.load(row + at, mask=at < stride, other=-float("inf")).to(tl.float32)
        below = (x + (tl.load(tops + block, mask=block < num_blocks, other=0.0) - top)) * inverse_temperature
        below = tl.where(at < vocab, below, -float("inf"))
        e = tl.exp(below)
        total += e
        moment += tl.where(e > 0, e * below, 0.0)
    sum_e = tl.sum(tl.sum(total, 1), 0)
    tl.store(entropies + tl.program_id(0), tl.log(sum_e) - tl.sum(tl.sum(moment, 1), 0) / sum_e)


def row_entropies(logits: Logits, temperature: float) -> Tensor:
    """[n] float32 entropy in nats of each row's softmax(logits / temperature); nan where an entry is nan or +inf.

    Args:
        logits: fp16 with their maxima, rows padded to a multiple of 16 entries.
    """
    values, tops = logits
    num_rows, vocab = values.shape
    out = torch.empty(num_rows, device=values.device)
    if num_rows:
        assert tops is not None
        _entropies[(num_rows,)](
            values,
            tops,
            out,
            values.stride(0),
            tops.shape[1],
            vocab,
            1.0 / temperature,
            BLOCKS=_BLOCKS,
            TOPS=_TOPS,
            SHIFT=VOCAB_BLOCK,
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
