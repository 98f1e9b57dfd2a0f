"""Where compiled code is kept between starts: with the fetched models, on the volume of a run that has one."""

from __future__ import annotations

import os
from pathlib import Path

from opd.inputs.fetch import cache_dir


def folders() -> dict[str, str]:
    """Environment variable of each compiler's cache, and its folder. Each names its entries by versions, device and source."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",  # the fused loss keeps its CUDA kernels there too
        "VLLM_CACHE_ROOT": "vllm",  # its torch.compile's, and DeepGEMM's kernels
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",  # where an engine asks for its attention
        "CUDA_CACHE_PATH": "driver",  # what the driver makes of kernels that have no machine code for the device
    }


def keep_compiled() -> Path | None:
    """Let this process and those that it starts keep what they compile; what the environment says already stays.

    Returns:
        The folder; None where it cannot be written to, and every compiler has its own default.
    """
    root = cache_dir().parent / "compiled"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(root, os.W_OK):
        return None
    for name, folder in folders().items():
        os.environ.setdefault(name, str(root / folder))
    return root
