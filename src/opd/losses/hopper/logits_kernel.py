"""The head product in Triton: logits of a chunk of tokens, stored in fp16 as distances below their block's maximum.

Imports triton, so it is loaded only where a CUDA device is there.

A block is 256 neighbouring vocabulary entries of one row. Its maximum is kept in fp32 and every entry as its distance
below it in fp16, rounded from the fp32 accumulator. Entries that carry probability lie close to their block's maximum,
where fp16 is finest; an entry 16 below is off by at most 1/128 and e^-16 as likely. So the storage follows any range
of logits, and costs the two bytes of plain fp16 (whose steps near a logit of 40 are 1/32).
"""

import ctypes
import functools
import re
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from opd.losses.hopper.driver import launch_function, num_multiprocessors, tensor_map

VOCAB_BLOCK = 256  # columns of a tile, and of a block of the shifted storage; rows.cu relies on it
TOKEN_BLOCK = 128
DEPTH_BLOCK = 64
# Measured on an H200 against other shapes, see tests/benchmarks/gpu/NOTES.md.
TOKEN_BLOCKS_PER_GROUP = 8
NUM_STAGES = 3
NUM_WARPS = 8


# One compiled form serves every shape, so that its handle can be kept.
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
    """One persistent program per multiprocessor; GROUP token blocks share each stretch of the head while it is in L2."""
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
            # Columns past the vocabulary were loaded as 0 and may be the last block's maximum: any value near the
            # entries serves, and the row kernel does not take it for a maximum. (Masking them here, in a branch or not,
            # costs the loop its overlap of a tile's end with the next one's start: 40 % of the time.)
            top = tl.max(acc, 1)
            row = m * BM + tl.arange(0, BM)
            tl.store(block_max + row.to(tl.int64) * num_blocks + n, top, mask=row < num_tokens)
            acc -= top[:, None]
        left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
        logits.store([m * BM, n * BN], left.to(OUT))
        logits.store([m * BM, n * BN + BN // 2], right.to(OUT))


def head_logits(hidden: Tensor, weight: Tensor, logits: Tensor, block_max: Tensor | None) -> None:
    """Write hidden @ weight.T, accumulated in fp32.

    Args:
        hidden: [n, d] bf16 or fp16, 16-byte aligned rows.
        weight: [vocab, d], same dtype; vocab counts only the entries that take part.
        logits: [n, vocab] output view whose row stride is a multiple of 16 bytes; fp16 with `block_max`, else fp32.
        block_max: [n, ceil(vocab / VOCAB_BLOCK)] fp32 output, the maximum of each block (of a last one that is cut by
            the vocabulary's end: of its entries and 0); None stores plain logits.
    """
    (num_tokens, depth), vocab = hidden.shape, weight.shape[0]
    num_blocks = triton.cdiv(vocab, VOCAB_BLOCK)
    device = hidden.device.index or 0
    num_programs = num_multiprocessors(device)
    grid = min(num_programs, triton.cdiv(num_tokens, TOKEN_BLOCK) * num_blocks)
    numbers = (num_tokens, vocab, depth, num_blocks)
    # fp32 logits have no maxima: any pointer to fp32 serves.
    tops = logits if block_max is None else block_max
    kernel = _compiled(device, hidden.dtype, logits.dtype, block_max is not None)
    if kernel is None:
        _triton_call(hidden, weight, logits, tops, numbers, block_max is not None, grid)
        return
    parameters: list[Any] = []
    for matrix, layout in zip((hidden, weight, logits), kernel.maps, strict=True):
        parameters += _matrix_parameters(matrix, layout)
    parameters += [ctypes.c_void_p(tops.data_ptr()), *map(ctypes.c_int, numbers), *_NO_SCRATCH]
    launch_function(kernel.function, (grid, 1, 1), kernel.num_threads, kernel.smem_bytes, parameters)


_NO_SCRATCH = (ctypes.c_void_p(), ctypes.c_void_p())
# Bytes of the compiled kernel's parameters: three matrices (map, shape, strides), a pointer, four numbers, two scratch pointers.
PARAMETER_BYTES = [*[128, 4, 4, 8, 8] * 3, 8, *[4] * 4, 8, 8]


class _MapLayout(NamedTuple):
    """How the compiled kernel moves one matrix."""

    block: tuple[int, int]
    element_type: int
    swizzle: int


class _Compiled(NamedTuple):
    """What a launch without Triton's own, which costs the host ten times as much, needs of the compiled kernel."""

    function: int
    num_threads: int
    smem_bytes: int
    maps: tuple[_MapLayout, ...]


def _matrix_parameters(matrix: Tensor, layout: _MapLayout) -> list[Any]:
    (rows, columns), (stride, step) = matrix.shape, matrix.stride()
    row_bytes = stride * matrix.element_size()
    made = tensor_map(matrix.data_ptr(), (rows, columns), row_bytes, layout.block, layout.element_type, layout.swizzle)
    return [made, ctypes.c_int(rows), ctypes.c_int(columns), ctypes.c_longlong(stride), ctypes.c_longlong(step)]


@functools.cache
def _compiled(device: int, dtype: torch.dtype, out: torch.dtype, shift: bool) -> _Compiled | None:
    """None where Triton passes the kernel's parameters otherwise than `head_logits` does."""
    make = functools.partial(torch.empty, device=f"cuda:{device}")
    hidden, weight = (make(rows, DEPTH_BLOCK, dtype=dtype) for rows in (TOKEN_BLOCK, VOCAB_BLOCK))
    logits, numbers = make(TOKEN_BLOCK, VOCAB_BLOCK, dtype=out), (TOKEN_BLOCK, VOCAB_BLOCK, DEPTH_BLOCK, 1)
    kernel = _triton_call(hidden, weight, logits, make(1, dtype=torch.float32), numbers, shift, 1, only_compile=True)
    kernel.run  # noqa: B018  loads it
    metadata = kernel.metadata
    has_scratch = metadata.global_scratch_size or metadata.profile_scratch_size
    if has_scratch or parameter_bytes(kernel.asm["ptx"]) != PARAMETER_BYTES:
        return None
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    maps = tuple(
        _MapLayout(tuple(of["block_size"]), TMA_DTYPE_DEVICE_TO_HOST[of["elem_type"]], of["swizzle"])
        for of in metadata.tensordesc_meta
    )
    return _Compiled(kernel.function, 32 * metadata.num_warps, metadata.shared, maps)


def parameter_bytes(ptx: str) -> list[int]:
    """Of a kernel's parameters, in their order."""
    declared = ptx[ptx.index(".entry") : ptx.index(")", ptx.index(".entry"))]
    found = re.findall(r"\.param (?:\.align \d+ )?\.[bu](\d+)[^,\[]*(?:\[(\d+)\])?", declared)
    return [int(bits) // 8 * int(count or 1) for bits, count in found]


def _triton_call(
    hidden: Tensor,
    weight: Tensor,
    logits: Tensor,
    tops: Tensor,
    numbers: tuple[int, int, int, int],
    shift: bool,
    grid: int,
    only_compile: bool = False,
) -> Any:
    """Triton's own launch, or what it would launch."""
    device = hidden.device.index or 0
    start = functools.partial(_logits.warmup, grid=(grid,)) if only_compile else _logits[(grid,)]
    return start(
        TensorDescriptor.from_tensor(hidden, [TOKEN_BLOCK, DEPTH_BLOCK]),
        TensorDescriptor.from_tensor(weight, [VOCAB_BLOCK, DEPTH_BLOCK]),
        TensorDescriptor.from_tensor(logits, [TOKEN_BLOCK, VOCAB_BLOCK // 2]),
        tops,
        *numbers,
        SHIFT=shift,
        OUT=tl.float16 if logits.dtype == torch.float16 else tl.float32,
        BM=TOKEN_BLOCK,
        BN=VOCAB_BLOCK,
        BK=DEPTH_BLOCK,
        GROUP=TOKEN_BLOCKS_PER_GROUP,
        NUM_PROGRAMS=num_multiprocessors(device),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )
