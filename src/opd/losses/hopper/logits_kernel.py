"""The head product in Triton, which stores logits in fp16 as distances below the fp32 maximum of their block.

Entries that carry probability are close to the maximum, where fp16 is finest. An entry 16 below is off by at most 1/128
and e^-16 as likely.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

VOCAB_BLOCK = 256  # columns of a tile, and of a block of the shifted storage; rows.cu relies on it
TOKEN_BLOCK = 128
DEPTH_BLOCK = 64
# Measured on an H200 against other shapes, see tests/benchmarks/gpu/NOTES.md.
TOKEN_BLOCKS_PER_GROUP = 8
NUM_STAGES = 3
NUM_WARPS = 8


# One compiled form serves every shape.
@triton.jit(do_not_specialize=["block_max", "num_tokens", "vocab", "depth", "num_blocks"])
def _logits(
    hidden,  # descriptor [num_tokens, depth]
    weight,  # descriptor [vocab, depth]
    logits,  # descriptor [num_tokens, vocab], blocks of half a tile
    block_max,  # [num_tokens, num_blocks] fp32
    num_tokens,
    vocab,
    depth,
    num_blocks,
    SHIFT: tl.constexpr,
    OUT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_PROGRAMS: tl.constexpr,
):
    """Run one persistent program per multiprocessor. GROUP token blocks share each part of the head while it is in L2."""
    num_m = tl.cdiv(num_tokens, BM)
    width = GROUP * num_blocks
    for tile in tl.range(tl.program_id(0), num_m * num_blocks, NUM_PROGRAMS, flatten=True):
        first_m = (tile // width) * GROUP
        group_m = tl.minimum(num_m - first_m, GROUP)
        m = first_m + (tile % width) % group_m
        n = (tile % width) // group_m
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(depth, BK)):
            acc = tl.dot(hidden.load([m * BM, k * BK]), weight.load([n * BN, k * BK]).T, acc)
        if SHIFT:
            # Columns after the vocabulary were loaded as 0 and may be the last block's maximum. Any value near the
            # entries serves, and the row kernel does not take it for a maximum. A mask here costs the loop the overlap
            # of a tile's end with the next tile's start: 40 % of the time.
            top = tl.max(acc, 1)
            row = m * BM + tl.arange(0, BM)
            tl.store(block_max + row.to(tl.int64) * num_blocks + n, top, mask=row < num_tokens)
            acc -= top[:, None]
        left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
        logits.store([m * BM, n * BN], left.to(OUT))
        logits.store([m * BM, n * BN + BN // 2], right.to(OUT))


def head_logits(hidden: Tensor, weight: Tensor, logits: Tensor, block_max: Tensor | None) -> None:
    """Write hidden [n, d] @ weight [vocab, d].T, both bf16 and 16-byte aligned, accumulated in fp32.

    Args:
        logits: [n, vocab] output view whose row stride is a multiple of 16 bytes; fp16 with `block_max`, else fp32.
        block_max: [n, ceil(vocab / VOCAB_BLOCK)] fp32 output, of each block. In a last block that the vocabulary's end
            cuts, 0 counts too. None stores plain logits.
    """
    (num_tokens, depth), vocab = hidden.shape, weight.shape[0]
    num_blocks = triton.cdiv(vocab, VOCAB_BLOCK)
    num_programs = torch.cuda.get_device_properties(hidden.device).multi_processor_count
    _logits[(min(num_programs, triton.cdiv(num_tokens, TOKEN_BLOCK) * num_blocks),)](
        TensorDescriptor.from_tensor(hidden, [TOKEN_BLOCK, DEPTH_BLOCK]),
        TensorDescriptor.from_tensor(weight, [VOCAB_BLOCK, DEPTH_BLOCK]),
        TensorDescriptor.from_tensor(logits, [TOKEN_BLOCK, VOCAB_BLOCK // 2]),
        logits if block_max is None else block_max,  # fp32 logits have no maxima: any pointer to fp32 serves
        num_tokens,
        vocab,
        depth,
        num_blocks,
        SHIFT=block_max is not None,
        OUT=tl.float16 if logits.dtype == torch.float16 else tl.float32,
        BM=TOKEN_BLOCK,
        BN=VOCAB_BLOCK,
        BK=DEPTH_BLOCK,
        GROUP=TOKEN_BLOCKS_PER_GROUP,
        NUM_PROGRAMS=num_programs,
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )
