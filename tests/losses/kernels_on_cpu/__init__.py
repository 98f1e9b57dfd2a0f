"""The package's CUDA sources on a CPU: compiled as C++, a cluster's threads run one after another (ptx.cuh beside this).

For the row kernel's arithmetic, its parts and the loop around them; neither its speed nor the device's own instructions.
"""

import ctypes
import functools
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from opd.losses import padded_head
from opd.losses.hopper import nvrtc

HERE = Path(__file__).parent
CLUSTER, THREADS = 2, 64
VOCAB_BLOCK = 256
_ONE_AT_A_TIME = threading.Lock()  # the fibers' state is the library's; ranks of a test may be threads
ROWS_WRAPPER = """
extern "C" void start(int blocks, const void* a, const void* b, const float* c, const float* d, void* e, const float* f,
                      const long long* g, float* h, float* i, long long j, long long k, long long l, float m, float n,
                      float o, float p) {
  for (int first = 0; first < blocks; first += CLUSTER)
    run_cluster(first, [&] { divergence_rows(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p); });
}
"""


def _source(source: str) -> str:
    text = (nvrtc.SOURCE_FOLDER / source).read_text()
    # Shared memory is each block's own, which no storage class of C++ is.
    for declared, instead in (
        ("extern __shared__ Vec teacher_smem[];", "Vec* teacher_smem = (Vec*)(block_memory() + 65536);"),
        ("__shared__ Shared sh;", "Shared& sh = *(Shared*)block_memory();"),
    ):
        assert text.count(declared) == 1
        text = text.replace(declared, instead)
    return text + ROWS_WRAPPER


@functools.cache
def load_kernel(source: str, name: str, macros: tuple[tuple[str, int], ...], device_index: int, smem_bytes: int):
    """As `nvrtc.load_kernel`: the compiled library's entry."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for header in nvrtc.SOURCE_FOLDER.glob("*.cuh"):
            (here / header.name).write_text(header.read_text())
        (here / "ptx.cuh").write_text((HERE / "ptx.cuh").read_text())
        (here / "kernel.cpp").write_text(_source(source))
        library = here / "kernel.so"
        flags = [f"-D{macro}={value}" for macro, value in macros]
        command = [
            "g++",
            *["-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-fno-gnu-unique", "-shared", "-fPIC"],
            *flags,
        ]
        done = subprocess.run([*command, str(here / "kernel.cpp"), "-o", str(library)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(library)).start


def launch(kernel, num_blocks: int, num_threads: int, smem_bytes: int, arguments: Sequence) -> None:
    """As `nvrtc.launch`."""
    values = []
    for argument in arguments:
        if argument is None or isinstance(argument, Tensor):
            values.append(ctypes.c_void_p(None if argument is None else argument.data_ptr()))
        else:
            values.append(ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_longlong(argument))
    with _ONE_AT_A_TIME:
        kernel(ctypes.c_int(num_blocks), *values)


def head_logits(hidden: Tensor, weight: Tensor, logits: Tensor, block_max: Tensor | None) -> None:
    """As `logits_kernel.head_logits`, from float32 sums."""
    product = hidden.float() @ weight.float().T
    if block_max is not None:
        padded = torch.zeros(len(product), block_max.shape[1] * VOCAB_BLOCK)
        padded[:, : product.shape[1]] = product
        block_max.copy_(padded.view(len(product), -1, VOCAB_BLOCK).amax(-1))
        product = product - block_max.repeat_interleave(VOCAB_BLOCK, 1)[:, : product.shape[1]]
    logits.copy_(product)


class HostCopy:
    """As `loop.HostCopy`."""

    def __init__(self, values: Tensor) -> None:
        self._values = values.clone()

    def read(self) -> Tensor:
        return self._values


def accumulate(out: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> None:
    """As `padded_head.accumulate`, which multiplies 16-bit factors without widening them: the CPU has no such product."""
    product = alpha * (a.to(out.dtype) @ b.to(out.dtype))
    out.copy_(product if beta == 0 else beta * out + product)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test: the fused form's kernels are the CPU's."""
    from opd.losses.hopper import loop, row_kernel

    monkeypatch.setattr(row_kernel, "load_kernel", load_kernel)
    monkeypatch.setattr(row_kernel, "launch", launch)
    monkeypatch.setattr(
        row_kernel,
        "_launch_shape",
        lambda vocab, entries: (CLUSTER, THREADS, -(-vocab // (entries * CLUSTER * THREADS))),
    )
    monkeypatch.setattr(loop, "head_logits", head_logits)
    monkeypatch.setattr(loop, "HostCopy", HostCopy)
    monkeypatch.setattr(padded_head, "accumulate", accumulate)
