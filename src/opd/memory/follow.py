"""Makes a running worker's memory plan from its own config and device: equal on every rank, printed by the first."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed

from opd.memory.job import GIB
from opd.memory.plan import Plan, make_plan
from opd.memory.shapes import Unplannable, read_shape
from opd.memory.sources import job_from_config
from opd.memory.table import render

logger = logging.getLogger(__name__)


def worker_plan(config: Mapping[str, Any], device: torch.device) -> Plan | None:
    """The plan of this worker (a collective call); None, with a warning, for a model whose config names no sizes.

    A plan that does not fit is printed with what helps and then followed all the same: it holds estimates, and the
    allocator has the last word. `opd.launch --plan` is where it is refused.

    Args:
        config: `actor_rollout_ref` with its group `opd`, as plain values.
        device: where this rank computes.
    """
    first = distributed.get_rank() == 0
    try:
        shapes = [read_shape(str(config[part]["path"] if part == "model" else config["opd"]["teacher"]["path"]))
                  for part in ("model", "teacher")]  # fmt: skip
    except Unplannable as error:
        if first:
            logger.warning("no residency plan, offload stays as configured: %s", error)
        return None
    job = job_from_config(
        config,
        *shapes,
        num_ranks=distributed.get_world_size(),
        on_gpu=device.type != "cpu",
        device_bytes=_device_bytes(config["opd"]["gpu_memory_gib"], device),
    )
    plan = make_plan(job)
    if first and job.device_bytes is not None:
        print(f"residency plan of one of {job.num_ranks} ranks\n{render(plan)}", flush=True)
    return plan


def _device_bytes(declared_gib: float | None, device: torch.device) -> int | None:
    """Memory of the smallest device of all ranks, or less if less is declared; a CPU has what is declared."""
    size = None if declared_gib is None else int(float(declared_gib) * GIB)
    if device.type == "cpu":
        return size
    _, total = torch.cuda.mem_get_info(device)
    smallest = torch.tensor(min(total, size or total), dtype=torch.int64, device=device)
    distributed.all_reduce(smallest, op=distributed.ReduceOp.MIN)
    return int(smallest)
