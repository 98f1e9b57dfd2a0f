"""Prints the memory plan of a spec (`opd.launch EXP.yaml --plan`), with nothing started and no weights read."""

from __future__ import annotations

import sys

from opd.errors import StoreUnavailable
from opd.experiment import Loaded, OpdAgentSpec, OpdSpec, SpecError, TrainSpec
from opd.experiment.rules import context_problems
from opd.experiment.sections import Model, Teacher
from opd.memory.device import Device, declared_name, planned_device
from opd.memory.plan import make_plan
from opd.memory.shapes import ModelShape, Unplannable, read_shape
from opd.memory.sources import has_reference, job_from_spec, update_settings
from opd.memory.table import render

EXIT_REFUSED = 2


def run(loaded: Loaded) -> int:
    """Print the plan; 0 if it fits (or the device is not known), 2 if it does not or cannot be made, 1 if a store is away."""
    spec = loaded.spec
    if not isinstance(spec, TrainSpec):
        print(
            f"opd.launch: --plan sizes training (kind opd, opd-agent, grpo, sft); kind {spec.kind} has no plan",
            file=sys.stderr,
        )
        return EXIT_REFUSED
    try:
        student = _shape("model.path", spec.model)
        named = spec.named_teachers if isinstance(spec, OpdSpec | OpdAgentSpec) else {}
        teachers = [_shape(f"{key}.path", teacher) for key, teacher in named.items()] or [student] * has_reference(spec)
    except Unplannable as error:
        print(f"opd.launch: --plan: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except StoreUnavailable as error:
        print(f"opd.launch: --plan: {error}", file=sys.stderr)
        return error.exit_code
    if problems := list(context_problems(spec, student.context)):
        print(SpecError(problems, origin=loaded.origin), file=sys.stderr)
        return EXIT_REFUSED
    device = Device(None, None)
    if spec.device == "cuda":
        device = planned_device(update_settings(spec).gpu_memory_gib, loaded.chart)
    plan = make_plan(
        job_from_spec(spec, student, *teachers, device_bytes=device.num_bytes, capability=device.capability)
    )
    print(render(plan, gpu_name=declared_name(loaded.chart) if spec.device == "cuda" else None))
    return 0 if plan.fits else EXIT_REFUSED


def _shape(key: str, model: Model | Teacher) -> ModelShape:
    try:
        return read_shape(model.path, revision=model.revision)
    except Unplannable as error:
        raise Unplannable(f"{key}: {error}") from error
