"""Shows a run in its cluster: alarms first, then the phase, what is in the way, and every pod."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opdctl.kube.run import ClusterRun
from opdctl.redact import redact
from opdctl.runs.tables import ago

PHASE_STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "invalid": "bold red",
    "stopped": "bold yellow",
    "retrying": "yellow",
    "suspended": "yellow",
    "deleting": "yellow",
}


def cluster_screen(run: ClusterRun, *, namespace: str, last_line: str = "") -> Group:
    """The cluster's side of `opdctl status`.

    Args:
        last_line: the newest line of the driver's log, where no store tells more.
    """
    parts: list[RenderableType] = [Text(f"!!! {redact(alarm)}", style="bold white on red") for alarm in run.alarms]
    head = Table.grid(padding=(0, 2))
    if run.job is None:
        head.add_row(
            Text("cluster", style="bold"), f"no RayJob in namespace {namespace}: deleted, or cleaned up after its end"
        )
    else:
        state = Text(redact(run.job.describe()), style=PHASE_STYLES.get(run.job.phase, ""))
        head.add_row(Text("cluster", style="bold"), state)
        head.add_row(Text("namespace", style="bold"), namespace)
        if run.job.started_s:
            head.add_row(Text("started", style="bold"), ago(run.job.started_s))
    if last_line:
        head.add_row(Text("log", style="bold"), Text(redact(last_line)))
    parts.append(head)
    parts += [Text(f"in the way: {redact(reason)}", style="bold yellow") for reason in run.blockers]
    if run.pods:
        parts.append(_pods(run))
    return Group(*parts)


def _pods(run: ClusterRun) -> Table:
    table = Table("pod", "role", "phase", "GPUs", "node", "restarts", "why", title="pods", title_justify="left")
    table.columns[0].no_wrap = True
    for pod in run.pods:
        table.add_row(
            pod.name,
            pod.role,
            pod.phase,
            str(pod.num_gpus) if pod.num_gpus else "–",
            pod.node or "–",
            str(pod.num_restarts),
            Text(redact(pod.why), style="yellow"),
        )
    return table
