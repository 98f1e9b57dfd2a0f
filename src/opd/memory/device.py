"""Says how much memory a GPU has: as declared, by the name of its product, or as the driver reports it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from opd.memory.job import GIB

# GiB that the driver gives (`torch.cuda.mem_get_info`), by a part of the product's name; the first that matches counts.
PRODUCT_GIB: tuple[tuple[str, float], ...] = (
    ("B200", 178.3),
    ("H200", 139.8),
    ("H100-NVL", 93.1),
    ("H100", 79.1),
    ("H800", 79.1),
    ("H20", 95.0),
    ("A100-SXM4-40", 39.4),
    ("A100-PCIE-40", 39.4),
    ("A100", 79.1),
    ("A800", 79.1),
    ("L40", 44.4),
    ("L4", 22.0),
)


def product_bytes(name: str) -> int | None:
    """Memory of a GPU by its product label (`nvidia.com/gpu.product`); None for one that is not in the table."""
    label = name.upper().replace(" ", "-")
    return next((int(gib * GIB) for part, gib in PRODUCT_GIB if part in label), None)


def declared_bytes(gib: float | None, chart: Mapping[str, Any]) -> int | None:
    """`opd.gpu_memory_gib`, else the memory of `cluster.gpu.type`; None where neither says."""
    if gib is not None:
        return int(gib * GIB)
    name = declared_name(chart)
    return None if name is None else product_bytes(name)


def declared_name(chart: Mapping[str, Any]) -> str | None:
    """`cluster.gpu.type`; None where the file does not say it."""
    gpu = chart.get("cluster", {}).get("gpu", {})
    return str(gpu["type"]) if "type" in gpu else None


def local_bytes() -> int | None:
    """Memory of this machine's smallest GPU, as nvidia-smi says; None without one."""
    sizes = [int(line) for line in _asked_sizes() if line.isdigit()]
    return min(sizes) * 2**20 if sizes else None


def _asked_sizes() -> list[str]:
    """Return the MiB of each GPU, as nvidia-smi prints them; nothing without one."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout.splitlines() if answer.returncode == 0 else []
