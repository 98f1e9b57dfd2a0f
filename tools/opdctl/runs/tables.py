"""Builds the tables that people read: runs side by side, a run's checkpoints, its evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from opdctl.redact import one_line, redact
from opdctl.runs.records import VALIDATION_PREFIX, RunRecord
from opdctl.runs.state import AttemptLine, Progress

STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "unreadable": "bold red",
    "silent": "yellow",
    "stopped": "yellow",
}


def runs_table(records: Sequence[RunRecord]) -> Table:
    """One row a run: state, progress, loss, accuracy, validation first and last, newest checkpoint."""
    table = Table("run", "kind", "state", "try", "step", "loss", "accuracy", "validation", "checkpoint", "last sign")
    for column in (3, 4, 5, 6, 8, 9):
        table.columns[column].justify = "right"
    for record in records:
        table.add_row(
            record.run_id,
            record.kind or "?",
            Text(record.state, style=STYLES.get(record.state, "")),
            str(record.num_attempts),
            progress_text(record),
            number(record.loss),
            percent(record.accuracy),
            Text("\n".join(validation_lines(record)) or "–"),
            str(record.complete_steps[-1]) if record.complete_steps else "–",
            ago(record.last_sign_s),
        )
    return table


def checkpoints_table(record: RunRecord) -> Table:
    """Every checkpoint of one run."""
    table = Table("checkpoint", "files", "size", "state", title=f"{record.run_id}: checkpoints")
    for entry in record.checkpoints:
        state = "complete" if entry["is_complete"] else "not complete: no COMPLETE marker"
        table.add_row(f"global_step_{entry['step']}", str(entry["num_files"]), size(entry["num_bytes"]), state)
    return table


def eval_table(record: RunRecord) -> Table | None:
    """The evaluation that a run's result holds, None for other runs."""
    sets = (record.result or {}).get("eval")
    if not isinstance(sets, dict) or not sets:
        return None
    table = Table("data set", "problems × answers", "mean@n", "pass@n", "maj@n", title=f"{record.run_id}: evaluation",
                  caption="percent ± standard error, clustered by problem")  # fmt: skip
    for name, found in sorted(sets.items()):
        dropped = f" ({found['num_dropped']} too long to ask)" if found["num_dropped"] else ""
        table.add_row(
            name,
            f"{found['num_problems']} × {found['num_samples']}{dropped}",
            with_error(found["mean"], found.get("standard_error")),
            percent(found["pass_at"][-1]),
            percent(found["maj_at"][-1]),
        )
    return table


def status_screen(record: RunRecord, attempts: Sequence[AttemptLine]) -> Group:
    """One screen: how the run stands, its attempts, its checkpoints, and what is wrong."""
    head = Table.grid(padding=(0, 2))
    rows: list[tuple[str, str | Text]] = [
        ("run", record.run_id),
        ("kind", record.kind or "?"),
        ("model", redact(record.model) or "–"),
        ("state", Text(record.state, style=STYLES.get(record.state, ""))),
        ("step", progress_text(record)),
        ("loss", number(record.loss)),
        ("accuracy", f"{percent(record.accuracy)} %" if record.accuracy is not None else "–"),
        ("validation", Text("\n".join(validation_lines(record)) or "–")),
        ("time left", duration(record.eta_s) if record.eta_s is not None else "–"),
        ("last sign", ago(record.last_sign_s)),
        ("checkpoints", ", ".join(map(str, record.complete_steps)) or "none complete"),
        ("store", Text(redact(record.url))),
    ]
    for name, value in rows:
        head.add_row(Text(name, style="bold"), value)
    table = Table("attempt", "host", "started", "ended", title="attempts", title_justify="left")
    for line in attempts:
        ended = f"{line.outcome}{': ' if line.detail else ''}{line.detail}" if line.outcome else "not yet"
        table.add_row(str(line.attempt), one_line(line.host), ago(line.started_at_s), Text(redact(ended)))
    if attempts and (progress := attempts[-1].progress) is not None:
        head.add_row(
            Text("progress", style="bold"), Text(progress_line(progress), style=STYLES["silent"] * progress.is_stuck)
        )
    warnings = [Text(f"warning: {redact(problem)}", style="yellow") for problem in record.problems]
    if record.detail:
        warnings.insert(0, Text(f"{record.state}: {redact(record.detail)}", style=STYLES.get(record.state, "")))
    return Group(head, table, *warnings)


def progress_line(progress: Progress) -> str:
    """`rollout at step 7, 12 s ago`, or for how long there was none."""
    where = one_line(progress.where)
    if progress.is_stuck and progress.limit_s is not None:
        return f"no progress for {duration(progress.silent_s)} ({where}); ended after {duration(progress.limit_s)}"
    return f"{where}, {duration(progress.silent_s)} ago"


def progress_text(record: RunRecord) -> str:
    if record.last_step is None:
        return "–"
    return f"{record.last_step}/{record.total_steps}" if record.total_steps else str(record.last_step)


def validation_lines(record: RunRecord) -> list[str]:
    """`toy_add 35.4 → 82.1 %` for each validation set."""
    return [
        f"{name.removeprefix(VALIDATION_PREFIX)} {100 * first:.1f} → {100 * last:.1f} %"
        for name, (first, last) in sorted(record.validation.items())
        if "/acc/mean@" in name
    ]


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def with_error(value: float, error: float | None) -> str:
    """`43.3 ± 7.1` in percent, the value alone where there is no error."""
    return percent(value) if error is None or error != error else f"{percent(value)} ± {percent(error)}"


def size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`, `2 d`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 / 60:.0f} min"
    return f"{seconds / 86400:.0f} d"


def ago(time_s: float) -> str:
    return "–" if not time_s else f"{duration(max(time.time() - time_s, 0))} ago"
