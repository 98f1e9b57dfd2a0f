"""The processes of a run: their environment, the caches of their compilers, and the start of Ray."""

import importlib
import os
import signal
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from opd.cluster.supervise import stay_on_loopback
from opd.compat import quiet
from opd.inputs.fetch import cache_dir
from opd.runs import stacks

# verl imports this package in each of its processes; see `opd.compat.cpu`.
CPU_PROFILE = "opd.compat.cpu"
_HEAVY = ("torch", "tensordict", "transformers", "datasets")
# Remarks about engines that no run asked for, and about verl's calls, by each process: as `warnings` takes them.
_QUIET = (
    ("", UserWarning, "verl.workers.engine"),
    ("Disabled critic", UserWarning, ""),
    ("torch.cuda._set_allocator_settings", FutureWarning, ""),
)
_PROCESS_ENVIRONMENT = (
    stacks.FOLDER_VARIABLE,
    "CUBLAS_WORKSPACE_CONFIG",
    "FLASH_ATTENTION_DETERMINISTIC",
    "NCCL_ALGO",
    "NCCL_DEBUG",
    "NCCL_DETERMINISTIC",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "SAGEMAKER_CONTAINER_LOG_LEVEL",
    "TOKENIZERS_PARALLELISM",
    "TQDM_DISABLE",
    "VERL_FULL_DETERMINISM",
    "VERL_LOGGING_LEVEL",
    "VERL_USE_EXTERNAL_MODULES",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
    "VLLM_BATCH_INVARIANT",
    "VLLM_DISABLE_COMPILE_CACHE",
    "VLLM_LOGGING_LEVEL",
)
"""Variables that workers on every node get from this process, where it has them."""
COMPILERS = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",  # its torch.compile's, and DeepGEMM's kernels
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",  # where an engine asks for its attention
    "CUDA_CACHE_PATH": "driver",  # the driver's code of kernels that have no machine code for the device
}
"""Environment variable of each compiler's cache, and its folder. Each names its entries by versions, device and source."""


def keep_compiled() -> Path | None:
    """Keep compiled code with the fetched models, and return the folder; a variable that is set already stays.

    None means that the folder cannot be written to, and every compiler has its own default.
    """
    root = cache_dir().parent / "compiled"
    with suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
    if not os.access(root, os.W_OK):
        return None
    for name, folder in COMPILERS.items():
        os.environ.setdefault(name, str(root / folder))
    return root


def set_process_environment(device: str) -> None:
    """Set the variables that every process of the run inherits, before verl is imported."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARN")
    os.environ.setdefault("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "true")
    for message, category, module in _QUIET:
        warnings.filterwarnings("ignore", message=message, category=category, module=module)
    os.environ.setdefault(
        "PYTHONWARNINGS", ",".join(f"ignore:{m}:{kind.__name__}:{module}" for m, kind, module in _QUIET)
    )
    if not os.environ.get("RAY_ADDRESS"):
        stay_on_loopback()
    os.environ["TQDM_DISABLE"] = "1"  # our own line a step says more, and survives `kubectl logs`
    if device != "cpu":
        # Importing vLLM sets up this package, which raises the root log handler to ERROR in every process.
        os.environ.setdefault("SAGEMAKER_CONTAINER_LOG_LEVEL", "WARNING")
        # verl switches vLLM's compile cache off, for several engines at once left torn files there; torch has written them whole since 2.10.
        os.environ.setdefault("VLLM_DISABLE_COMPILE_CACHE", "0")
        keep_compiled()
    else:
        modules = [m for m in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",") if m and m != CPU_PROFILE]
        os.environ["VERL_USE_EXTERNAL_MODULES"] = ",".join([CPU_PROFILE, *modules])
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models: more threads wait for each other
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            del os.environ["CUDA_VISIBLE_DEVICES"]  # Ray raises on an empty one


def _import_heavy() -> None:
    """Import packages that neither Ray nor verl is part of: two threads that import one cycle may get half-made modules."""
    with suppress(ImportError):  # the next import of the module raises it again
        for name in _HEAVY:
            importlib.import_module(name)


def start_ray(config: DictConfig, *, num_cpus: int) -> bool:
    """Start an embedded Ray (True), or join the cluster of RAY_ADDRESS (False).

    A thread imports torch meanwhile, since this process mostly waits for Ray's daemons. Ray itself starts in the calling
    thread: its daemons end with the thread that started them.

    Args:
        num_cpus: CPUs of an embedded Ray whose config gives none. They are slots: a run gets as many as it asks for,
            however many cores the machine has.
    """
    import ray

    from opd.compat import ray_start

    quiet.mute()
    init: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    runtime_env = init.pop("runtime_env", None) or {}
    # A raylet that others started does not have this process's environment.
    ours = {name: os.environ[name] for name in (*_PROCESS_ENVIRONMENT, *COMPILERS) if name in os.environ}
    runtime_env.setdefault("worker_process_setup_hook", "opd.runs.stacks.register")
    runtime_env["env_vars"] = {**ours, **(runtime_env.get("env_vars") or {})}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    joins = bool(os.environ.get("RAY_ADDRESS"))
    if not joins:
        # Without an address Ray joins the cluster that started last on this machine, another run's among them.
        init = {"address": "local", "num_cpus": num_cpus} | {
            key: value for key, value in init.items() if value is not None
        }
        ray_start.wait_longer()
        ray_start.draw_job_id()
        if init.get("include_dashboard") is False:
            ray_start.leave_out_daemons()
    imports = threading.Thread(target=_import_heavy, name="imports")
    imports.start()
    ray.init(**init, runtime_env=runtime_env)
    imports.join()
    signal.signal(signal.SIGTERM, on_sigterm)  # Ray put its own there, which knows nothing of the run directory
    return not joins
