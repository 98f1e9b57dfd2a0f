"""The memory plan of a spec, printed (`opd.launch EXP.yaml --plan`) with nothing started and no weights read."""

import sys

from opd.errors import StoreUnavailable
from opd.experiment import Loaded, SpecError, TrainSpec
from opd.experiment.kinds import DistillationSpec
from opd.experiment.rules import context_problems
from opd.memory.job import GIB
from opd.memory.plan import make_plan
from opd.memory.sources import job_from_spec, update_settings
from opd.memory.table import render
from opd.shapes import Unplannable, read_shape

# By capability and a part of the product's name: GiB that the driver gives (`torch.cuda.mem_get_info`). The first match counts.
PRODUCTS = {
    (10, 0): {"B200": 178.3},
    (9, 0): {"H200": 139.8, "H100-NVL": 93.1, "H100": 79.1, "H800": 79.1, "H20": 95.0},
    (8, 0): {"A100-SXM4-40": 39.4, "A100-PCIE-40": 39.4, "A100": 79.1, "A800": 79.1},
    (8, 9): {"L40": 44.4, "L4": 22.0},
}


def run(loaded: Loaded) -> int:
    """Print the plan and return 0 if it fits or the device is not known, else 2; 1 means an unreachable store."""
    spec = loaded.spec
    try:
        if not isinstance(spec, TrainSpec):
            raise Unplannable(f"sizes training (kind opd, opd-agent, grpo, sft); kind {spec.kind} has no plan")
        student = read_shape(spec.model.path, revision=spec.model.revision)
        named = spec.named_teachers.values() if isinstance(spec, DistillationSpec) else ()
        teachers = [read_shape(each.path, revision=each.revision) for each in named] or [student] * spec.has_reference
    except (Unplannable, StoreUnavailable) as error:
        print(f"opd.launch: --plan: {error}", file=sys.stderr)
        return error.exit_code
    if problems := list(context_problems(spec, student.context)):
        print(SpecError(problems, origin=loaded.origin), file=sys.stderr)
        return SpecError.exit_code
    name = loaded.chart.get("cluster", {}).get("gpu", {}).get("type") if spec.device == "cuda" else None
    label = str(name or "").upper().replace(" ", "-")
    products = [(part, gib, capability) for capability, of in PRODUCTS.items() for part, gib in of.items()]
    gib, capability = next(((gib, capability) for part, gib, capability in products if part in label), (None, None))
    gib = update_settings(spec).gpu_memory_gib or gib
    size = None if gib is None else int(gib * GIB)
    plan = make_plan(job_from_spec(spec, student, *teachers, device_bytes=size, capability=capability))
    print(render(plan))
    if size is None:
        needed = f"the device's memory is not known, {plan.peak.total / GIB:.2f} GiB are needed"
        known = f"cluster.gpu.type {name or '(not set)'} is none of {', '.join(part for part, *_ in products)}"
        print(f"{needed}: {known}; set it{', or opd.gpu_memory_gib' if named else ''}")
    return 0 if plan.fits else SpecError.exit_code
