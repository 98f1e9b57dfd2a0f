"""Prints the memory plan of a spec (`opd.launch EXP.yaml --plan`), with nothing started and no weights read."""

from __future__ import annotations

import sys

from opd.config import Loaded, OpdAgentSpec, OpdSpec
from opd.memory.device import declared_bytes, local_bytes
from opd.memory.plan import make_plan
from opd.memory.shapes import Unplannable, read_shape
from opd.memory.sources import job_from_spec
from opd.memory.table import render

EXIT_REFUSED = 2


def run(loaded: Loaded) -> int:
    """Print the plan; 0 if it fits (or the device is not known), 2 if it does not or cannot be made."""
    spec = loaded.spec
    if not isinstance(spec, OpdSpec | OpdAgentSpec):
        print(
            f"opd.launch: --plan sizes distillation (kind opd, opd-agent); kind {spec.kind} has no plan",
            file=sys.stderr,
        )
        return EXIT_REFUSED
    try:
        student = read_shape(spec.model.path, revision=spec.model.revision)
        teachers = [read_shape(teacher.path, revision=teacher.revision) for teacher in spec.named_teachers.values()]
    except Unplannable as error:
        print(f"opd.launch: --plan: {error}", file=sys.stderr)
        return EXIT_REFUSED
    device_bytes = None
    if spec.device == "cuda":
        device_bytes = declared_bytes(spec.opd.gpu_memory_gib, loaded.chart) or local_bytes()
    plan = make_plan(job_from_spec(spec, student, *teachers, device_bytes=device_bytes))
    print(render(plan))
    return 0 if plan.fits else EXIT_REFUSED
