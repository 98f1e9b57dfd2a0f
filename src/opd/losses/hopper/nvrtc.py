"""Run-time compilation and launch of the package's CUDA sources, through the NVRTC that every CUDA build of torch brings."""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver, nvrtc
from torch import Tensor

SOURCE_FOLDER = Path(__file__).parent
ARCHITECTURE = "sm_90a"


class CudaKernelError(RuntimeError):
    """A CUDA source did not compile, or the driver refused a call."""


def compile_cubin(source: str, macros: tuple[tuple[str, int], ...]) -> bytes:
    """Return the machine code of a source file next to this module, with (name, value) pairs for -D; needs no GPU."""
    code = (SOURCE_FOLDER / source).read_bytes()
    headers = sorted(SOURCE_FOLDER.glob("*.cuh"))
    contents, names = [header.read_bytes() for header in headers], [header.name.encode() for header in headers]
    created = nvrtc.nvrtcCreateProgram(code, source.encode(), len(headers), contents, names)
    program = _checked(created, "nvrtcCreateProgram")
    options = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17", *(f"-D{name}={value}" for name, value in macros)]
    result = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CudaKernelError(f"{source} with {dict(macros)} did not compile:\n{log.decode()}")
    cubin: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
    _checked(nvrtc.nvrtcDestroyProgram(program), "nvrtcDestroyProgram")
    return cubin


@functools.cache
def load_kernel(source: str, name: str, macros: tuple[tuple[str, int], ...], device_index: int, smem_bytes: int) -> Any:
    """Compile a kernel for a device and load it once a process; `smem_bytes` is its dynamic shared memory limit."""
    cubin = compile_cubin(source, macros)
    with torch.cuda.device(device_index):
        torch.cuda.current_stream().query()  # makes the primary context current in this thread
        module = _checked(driver.cuModuleLoadData(cubin), "cuModuleLoadData")
        function = _checked(driver.cuModuleGetFunction(module, name.encode()), "cuModuleGetFunction")
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(function, attribute, smem_bytes), "cuFuncSetAttribute")
    return function


def launch(
    kernel: Any, num_blocks: int, num_threads: int, smem_bytes: int, arguments: Sequence[Tensor | int | float | None]
) -> None:
    """Launch on torch's current stream, whose device must be the one that the kernel was loaded for.

    Tensors pass as pointers (None as null), int as 64 bits, float as 32 bits.
    """
    parameters = tuple(zip(*map(_parameter, arguments), strict=True))
    stream = torch.cuda.current_stream().cuda_stream
    launched = driver.cuLaunchKernel(kernel, num_blocks, 1, 1, num_threads, 1, 1, smem_bytes, stream, parameters, 0)
    _checked(launched, "cuLaunchKernel")


def _parameter(argument: Tensor | int | float | None) -> tuple[int | float, type]:
    """Return the value and the C type of a kernel's argument."""
    if argument is None or isinstance(argument, Tensor):
        return 0 if argument is None else argument.data_ptr(), ctypes.c_void_p
    return argument, ctypes.c_float if isinstance(argument, float) else ctypes.c_longlong


def _checked(result: tuple[Any, ...], call: str) -> Any:
    """Return the value of a cuda.bindings call, or raise its error as an exception."""
    status, *values = result
    if int(status) != 0:
        raise CudaKernelError(f"{call} failed: {status!r}")
    return values[0] if values else None
