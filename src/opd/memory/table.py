"""Draws a memory plan as a table for a terminal: GiB a phase, part by part, and what is offloaded."""

from __future__ import annotations

from opd.memory.device import PRODUCTS
from opd.memory.job import GIB
from opd.memory.plan import Plan, checkpoint_bytes


def render(plan: Plan, *, gpu_name: str | None = None) -> str:
    """A table of parts by phases in GiB (a part marked * shares its room with the other marked ones), and the decisions.

    Args:
        gpu_name: `cluster.gpu.type`, where the spec's file says it.
    """
    phases = plan.phases
    names = list(dict.fromkeys(name for phase in phases for name in (*phase.parts, *phase.either)))
    shared = {name for phase in phases for name in phase.either}
    rows = [["GiB on one device", *(phase.name for phase in phases)]]
    for name in names:
        sizes = [phase.parts.get(name, phase.either.get(name)) for phase in phases]
        rows.append([f"{name} *" if name in shared else name, *("" if s is None else _gib(s) for s in sizes)])
    rows.append(["total", *(_gib(phase.total) for phase in phases)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    rule = "-" * len(lines[0])
    lines = [lines[0], rule, *lines[1:-1], rule, lines[-1]]
    if shared:
        lines.append("* only the larger of these is there at a time, and counts")
    return "\n".join([*lines, *_decisions(plan), *_verdict(plan, gpu_name)])


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _line(row: list[str], widths: list[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    return "  ".join(cells)


def _decisions(plan: Plan) -> list[str]:
    choice, job = plan.choice, plan.job
    parts = {} if job.teacher is None else {"teacher": (choice.offload_teacher, job.offload_teacher)}
    parts |= {
        "student weights": (choice.offload_params, job.offload_params),
        "optimizer": (choice.offload_optimizer, job.offload_optimizer),
    }
    where = ", ".join(
        f"{name} {'on the host outside its phase' if offloaded else 'on the device'}{'' if wish is None else ' (as set)'}"
        for name, (offloaded, wish) in parts.items()
    )
    copy = []
    if job.copies_checkpoints:
        size = _gib(checkpoint_bytes(job))
        copy = [f"a checkpoint's copy in host memory (checkpoint.overlap): {size} GiB of each rank"]
    if job.adapter_params is not None:
        where += f"; of the student {job.adapter_params:,} entries of adapters are trained"
    cached = min(choice.cache_bytes, job.hidden_bytes)
    pinned = ", the rest in pinned host memory" if plan.host_bytes else ""
    hidden = [f"hidden states: {_gib(cached)} of {_gib(job.hidden_bytes)} GiB on the device{pinned}"] * bool(
        job.compared
    )
    per_update = "once an update" if choice.keep_gathered else "every micro-batch"
    reduced = "once an update" if choice.defer_sync else "every micro-batch"
    return [
        f"weights: {where}",
        *hidden,
        f"student's weights are gathered {per_update}, its gradients reduced {reduced}",
        f"student's micro-batches: {choice.train_tokens:,} tokens at most",
        f"student's activations: {_activations(plan)}",
        *([f"forwards without a gradient of {choice.score_tokens:,} tokens at most"] * bool(job.teacher)),
        *copy,
    ]


def _activations(plan: Plan) -> str:
    if plan.choice.checkpointing:
        return "recomputed layer by layer (gradient checkpointing)"
    return "all kept" if plan.choice.activation_share == 1 else f"{plan.choice.activation_share:.0%} kept"


def _verdict(plan: Plan, gpu_name: str | None) -> list[str]:
    size = plan.job.device_bytes
    if size is None:
        by_key = plan.job.memory_key
        if gpu_name is None:
            how = f"name it by {by_key and f'{by_key}, or by '}cluster.gpu.type"
        else:
            known = ", ".join(part for part, _, _ in PRODUCTS)
            how = f"cluster.gpu.type {gpu_name} is not in the table ({known}){by_key and f', so set {by_key}'}"
        return [f"the device's memory is not known, {_gib(plan.peak.total)} GiB are needed: {how}"]
    if plan.fits:
        return [f"fits: {_gib(plan.peak.total)} of {_gib(size)} GiB at the most (phase `{plan.peak.name}`)"]
    over = [f"`{phase.name}` {_gib(phase.total)}" for phase in plan.phases if phase.total > size]
    return [f"does not fit into {_gib(size)} GiB: {', '.join(over)}", *(f"  helps: {knob}" for knob in plan.knobs)]
