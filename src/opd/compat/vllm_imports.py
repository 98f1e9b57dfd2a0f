"""What an engine's process of vLLM 0.24.0 on a GPU imports until its model is built. Importing this module imports it.

The process that engines are forked from does so (`opd.compat.vllm_engine`), and must not use CUDA. So modules that ask for the device as they are
imported are left out: FlashInfer, `vllm.model_executor.layers.fla`, and what imports either (`vllm.compilation.backends`, verl's extension of the
worker). So is what is not installed. The engine imports the rest where it needs it, or fails there as it would have.
"""

import contextlib
import importlib
import threading

MODULES = (
    "vllm.v1.engine.core",  # first: it has torch count devices without taking one
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen3",
    "vllm.compilation.cuda_graph",
    "torch._inductor.compile_fx",
    "ray._private.workers.default_worker",  # the main module of the server's process, which each child of it reads again
)

for _name in MODULES:
    with contextlib.suppress(Exception):
        importlib.import_module(_name)

with contextlib.suppress(ImportError):
    import setproctitle

    setproctitle.getproctitle()  # finds where a title goes by the environment that the process began with, which engines replace

NUM_THREADS = threading.active_count()
"""Python's, of which a fork has one."""
