"""The GPU that a plan is made for: its memory and its compute capability, as declared or as the driver reports them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any, NamedTuple

from opd.memory.job import GIB


class Device(NamedTuple):
    """Bytes that the driver gives, and the compute capability. None means that it is not known."""

    num_bytes: int | None
    capability: tuple[int, int] | None


# GiB that the driver gives (`torch.cuda.mem_get_info`) and capability, by a part of the product's name; the first match counts.
PRODUCTS: tuple[tuple[str, float, tuple[int, int]], ...] = (
    ("B200", 178.3, (10, 0)),
    ("H200", 139.8, (9, 0)),
    ("H100-NVL", 93.1, (9, 0)),
    ("H100", 79.1, (9, 0)),
    ("H800", 79.1, (9, 0)),
    ("H20", 95.0, (9, 0)),
    ("A100-SXM4-40", 39.4, (8, 0)),
    ("A100-PCIE-40", 39.4, (8, 0)),
    ("A100", 79.1, (8, 0)),
    ("A800", 79.1, (8, 0)),
    ("L40", 44.4, (8, 9)),
    ("L4", 22.0, (8, 9)),
)


def declared_name(chart: Mapping[str, Any]) -> str | None:
    """Return `cluster.gpu.type`. None means that the file does not say it."""
    gpu = chart.get("cluster", {}).get("gpu", {})
    return str(gpu["type"]) if "type" in gpu else None


def planned_device(gib: float | None, chart: Mapping[str, Any]) -> Device:
    """Return the GPU that `cluster.gpu.type` names, else this machine's smallest; `gib` is `opd.gpu_memory_gib`."""
    label = (declared_name(chart) or "").upper().replace(" ", "-")
    found = next((Device(int(size * GIB), capability) for part, size, capability in PRODUCTS if part in label), None)
    found = found or _local() or Device(None, None)
    return found if gib is None else found._replace(num_bytes=int(gib * GIB))


def _local() -> Device | None:
    """Return this machine's smallest GPU, as nvidia-smi prints it. None means that there is none."""
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "--query-gpu=memory.total,compute_cap", "--format=csv,noheader,nounits"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    found = []
    for line in answer.stdout.splitlines() if answer.returncode == 0 else []:
        size, _, capability = line.replace(" ", "").partition(",")
        major, _, minor = capability.partition(".")
        if size.isdigit() and major.isdigit() and minor.isdigit():
            found.append(Device(int(size) * 2**20, (int(major), int(minor))))
    return min(found, default=None)
