"""The memory plan of a running worker, from its own config and device and equal on every rank, and its lengths of forwards."""

import logging
from collections.abc import Iterable

import torch
from torch import distributed

from opd.experiment import TrainSpec
from opd.memory.job import GIB
from opd.memory.plan import Plan, make_plan
from opd.memory.sources import job_from_spec, most_read_tokens, most_train_tokens, update_settings
from opd.memory.table import render
from opd.shapes import Unplannable, read_shape

logger = logging.getLogger(__name__)


def worker_plan(
    spec: TrainSpec, *, student: str, teachers: Iterable[str], num_sharing: int, device: torch.device
) -> Plan | None:
    """Return the plan of this worker (a collective call); None, with a warning, for a model whose config names no sizes.

    A plan that does not fit is printed and followed all the same: it holds estimates. `opd.launch --plan` refuses it.
    `num_sharing` ranks share the weights.
    """
    first = distributed.get_rank() == 0
    try:
        shapes = [read_shape(path) for path in (student, *teachers)]
    except Unplannable as error:
        if first:
            logger.warning("no memory plan, offload stays as configured: %s", error)
        return None
    declared, capability = update_settings(spec).gpu_memory_gib, None
    size = None if declared is None else int(declared * GIB)
    if device.type == "cuda":  # the smallest device of all ranks, or less if less is declared
        capability, (_, total) = torch.cuda.get_device_capability(device), torch.cuda.mem_get_info(device)
        smallest = torch.tensor(min(total, size or total), dtype=torch.int64, device=device)
        distributed.all_reduce(smallest, op=distributed.ReduceOp.MIN)
        size = int(smallest)
    job = job_from_spec(spec, *shapes, device_bytes=size, capability=capability, num_sharing=num_sharing)
    plan = make_plan(job)
    if first and job.device_bytes is not None:
        print(f"memory plan of one of {job.num_ranks} ranks\n{render(plan)}", flush=True)
    return plan


def read_tokens(spec: TrainSpec, plan: Plan | None) -> int | None:
    """Return the tokens of a forward without a gradient on one rank. None means that verl's keys cut it."""
    if plan is None or not plan.job.score_is_planned:
        return most_read_tokens(spec)
    return -(-plan.choice.score_tokens // plan.job.sequence_ranks)


def train_tokens(spec: TrainSpec, plan: Plan | None) -> int | None:
    """Return the tokens of a micro-batch of the student on one rank. None means that verl's keys cut it."""
    most = most_train_tokens(spec)
    if plan is None or most is None:
        return most
    return -(-plan.choice.train_tokens // plan.job.sequence_ranks)
