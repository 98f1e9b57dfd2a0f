"""A memory plan as a table for a terminal: GiB a phase, part by part, and what is offloaded."""

from opd.memory.job import GIB
from opd.memory.plan import Plan

_HELPS = """\
  helps: teacher.offload, actor.optimizer_offload, actor.param_offload and actor.gradient_checkpointing: auto
  helps: a smaller rollout.gpu_memory_utilization; fewer tokens in opd.train_tokens and opd.read_tokens
  helps: model.lora; more ranks (trainer.gpus_per_node, trainer.nnodes)"""


def render(plan: Plan) -> str:
    """Return a table of parts by phases in GiB (a part marked * shares its room with the other marked parts), and the decisions."""
    phases = plan.phases
    rows = [["GiB on one device", *(phase.name for phase in phases)]]
    for mark, held in (("", [phase.parts for phase in phases]), (" *", [phase.either for phase in phases])):
        for name in dict.fromkeys(name for parts in held for name in parts):
            rows.append([name + mark, *(_gib(parts[name]) if name in parts else "" for parts in held)])
    rows.append(["total", *(_gib(phase.total) for phase in phases)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    rule = "-" * len(lines[0])
    note = "* only the larger of these is there at a time, and counts"
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], note, *_decisions(plan), *_verdict(plan)])


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _decisions(plan: Plan) -> list[str]:
    choice, job = plan.choice, plan.job
    parts = {"teacher": (choice.offload_teacher, job.offload_teacher)} if job.teachers else {}
    parts |= {
        "student weights": (choice.offload_params, job.offload_params),
        "optimizer": (choice.offload_optimizer, job.offload_optimizer),
    }
    where = ", ".join(
        f"{name} {'on the host outside its phase' if offloaded else 'on the device'}{'' if wish is None else ' (as set)'}"
        for name, (offloaded, wish) in parts.items()
    )
    lines = [f"weights: {where}"]
    if job.adapter_params is not None:
        lines.append(f"{job.adapter_params:,} entries of adapters are trained")
    if job.compared:
        cached = f"{_gib(job.hidden_bytes - plan.host_bytes)} of {_gib(job.hidden_bytes)} GiB on the device"
        lines.append(f"hidden states: {cached}{', the rest in pinned host memory' if plan.host_bytes else ''}")
    gathered, reduced = (
        "once an update" if whole else "every micro-batch" for whole in (choice.keep_gathered, choice.defer_sync)
    )
    recomputed = "recomputed layer by layer (gradient checkpointing)"
    lines += [
        f"student's weights are gathered {gathered}, its gradients reduced {reduced}",
        f"student's micro-batches: {choice.train_tokens:,} tokens at most",
        f"student's activations: {recomputed if choice.checkpointing else f'{choice.activation_share:.0%} kept'}",
    ]
    if job.teachers:
        lines.append(f"forwards without a gradient of {choice.score_tokens:,} tokens at most")
    return lines


def _verdict(plan: Plan) -> list[str]:
    size = plan.job.device_bytes
    if size is None:
        return []
    if plan.fits:
        return [f"fits: {_gib(plan.peak.total)} of {_gib(size)} GiB at the most (phase `{plan.peak.name}`)"]
    over = [f"`{phase.name}` {_gib(phase.total)}" for phase in plan.phases if phase.total > size]
    return [f"does not fit into {_gib(size)} GiB: {', '.join(over)}", _HELPS]
