"""Shows a run in its cluster: alarms first, then the phase, what is in the way, and every pod."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from opdctl.kube.notice import Notice
from opdctl.kube.run import ClusterRun
from opdctl.redact import one_line, redact
from opdctl.runs.layout import Cell, Sheet, facts
from opdctl.runs.tables import ago, duration, number, score_text

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
    rows: list[tuple[str, Cell]] = []
    if run.job is None:
        rows.append(("cluster", f"no RayJob in namespace {namespace}: deleted, or cleaned up after its end"))
    else:
        rows.append(("cluster", Text(redact(run.job.describe()), style=PHASE_STYLES.get(run.job.phase, ""))))
        rows.append(("namespace", namespace))
        if run.job.started_s:
            rows.append(("started", ago(run.job.started_s)))
    if run.notice is not None:
        rows.append(("progress", notice_line(run.notice)))
    if last_line:
        rows.append(("log", redact(last_line)))
    parts.append(facts(rows))
    parts += [Text(f"in the way: {redact(reason)}", style="bold yellow") for reason in run.blockers]
    if run.pods:
        parts.append(_pods(run))
    return Group(*parts)


def notice_line(notice: Notice) -> str:
    """`rollout at step 7/40, score 62.3 %, loss 0.41, 12 min left, attempt 2; written 5 s ago`; of a pipeline behind its stage."""
    total = f"/{notice.total_steps}" if notice.total_steps else ""
    parts = [
        f"{one_line(notice.phase)} at step {notice.step}{total}" if notice.step is not None else one_line(notice.phase)
    ]
    parts += [f"score {score_text(notice.score)}"] if notice.score is not None else []
    parts += [f"loss {number(notice.loss)}"] if notice.loss is not None else []
    parts += [f"{duration(notice.eta_s)} left"] if notice.eta_s is not None else []
    parts += [f"attempt {notice.attempt}"] if notice.attempt is not None else []
    stage = f"{one_line(notice.stage)}: " if notice.stage else ""
    return f"{stage}{', '.join(parts)}; written {ago(notice.updated_at_s)}"


def _pods(run: ClusterRun) -> Sheet:
    lines = [
        (
            pod.name,
            pod.role,
            pod.phase,
            str(pod.num_gpus) if pod.num_gpus else "–",
            pod.node or "–",
            str(pod.num_restarts),
            Text(redact(pod.why), style="yellow"),
        )
        for pod in run.pods
    ]
    return Sheet(names=("pod", "role", "phase", "GPUs", "node", "restarts", "why"), lines=lines, title="pods")
