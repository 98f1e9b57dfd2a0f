"""Kernel launches and tensor maps through the CUDA driver's C interface, whose cost to the host is a few microseconds."""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

_ALIGNMENT = 64  # of a tensor map, which is 128 bytes
_TENSOR_MAP_BYTES = 128
_L2_PROMOTION_128B = 2


class CudaKernelError(RuntimeError):
    """A CUDA source did not compile, or the driver refused a call."""


@functools.cache
def num_multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    library.cuCtxGetCurrent.argtypes = [pointer]
    library.cuLaunchKernel.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]
    library.cuTensorMapEncodeTiled.argtypes = [pointer, number, number, *[pointer] * 5, *[number] * 4]
    return library


def launch_function(
    function: int, grid: tuple[int, int, int], num_threads: int, smem_bytes: int, parameters: Sequence[Any]
) -> None:
    """Launch on torch's current stream, whose device must be the one that the function was loaded for.

    Args:
        parameters: ctypes values, as wide as the kernel's own parameters.
    """
    addresses = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))
    stream = torch.cuda.current_stream().cuda_stream
    _make_context_current()
    status = _library().cuLaunchKernel(function, *grid, num_threads, 1, 1, smem_bytes, stream, addresses, None)
    if status:
        raise CudaKernelError(f"cuLaunchKernel failed: CUresult {status}")


def _make_context_current() -> None:
    """A thread that has asked nothing of the device yet, such as autograd's, has no context, and the driver makes none."""
    context = ctypes.c_void_p()
    status = _library().cuCtxGetCurrent(ctypes.byref(context))
    if status:
        raise CudaKernelError(f"cuCtxGetCurrent failed: CUresult {status}")
    if not context:
        torch.cuda.current_stream().query()  # through the runtime, which makes its device's primary context current


@functools.lru_cache(maxsize=256)
def tensor_map(
    address: int, shape: tuple[int, int], row_bytes: int, block: tuple[int, int], element_type: int, swizzle: int
) -> Any:
    """A CUtensorMap of a matrix; it says where one lies and how it is cut, not what it holds, so the same one serves again.

    Args:
        block: rows and columns that one instruction moves.
        element_type, swizzle: the driver's numbers for them.
    """
    room = ctypes.create_string_buffer(_TENSOR_MAP_BYTES + _ALIGNMENT)
    offset = -ctypes.addressof(room) % _ALIGNMENT
    made = (ctypes.c_char * _TENSOR_MAP_BYTES).from_buffer(room, offset)
    sizes, strides = (ctypes.c_uint64 * 2)(shape[1], shape[0]), (ctypes.c_uint64 * 2)(row_bytes, row_bytes * shape[0])
    box, steps = (ctypes.c_uint32 * 2)(block[1], block[0]), (ctypes.c_uint32 * 2)(1, 1)
    _make_context_current()
    status = _library().cuTensorMapEncodeTiled(
        ctypes.byref(made), element_type, 2, address, sizes, strides, box, steps, 0, swizzle, _L2_PROMOTION_128B, 0
    )
    if status:
        raise CudaKernelError(
            f"cuTensorMapEncodeTiled failed: CUresult {status} (shape {shape}, rows of {row_bytes} bytes, block {block})"
        )
    return made
