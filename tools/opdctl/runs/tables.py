"""Builds the tables that people read: runs side by side, a run's checkpoints, its evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from opd.runs.headline import VALIDATION_PREFIX, Score
from opdctl.redact import one_line, redact
from opdctl.runs.layout import Sheet, facts
from opdctl.runs.record import RunRecord
from opdctl.runs.state import AttemptLine, Progress

STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "unreadable": "bold red",
    "silent": "yellow",
    "stopped": "yellow",
}


def runs_table(records: Sequence[RunRecord]) -> Sheet:
    """One row a run: state, progress, loss, score, validation first and last, newest checkpoint."""
    names = ("run", "kind", "state", "try", "step", "loss", "score", "validation", "checkpoint", "last sign")
    lines = [
        (
            record.run_id,
            record.kind or "?",
            Text(record.state, style=STYLES.get(record.state, "")),
            str(record.num_attempts),
            progress_text(record),
            number(record.loss),
            score_text(record.rollout_score),
            "\n".join(validation_lines(record)) or "–",
            str(record.complete_steps[-1]) if record.complete_steps else "–",
            ago(record.last_sign_s),
        )
        for record in records
    ]
    return Sheet(names=names, lines=lines)


def checkpoints_table(record: RunRecord) -> Sheet:
    """Every checkpoint of one run."""
    lines = [
        (
            f"global_step_{entry['step']}",
            str(entry["num_files"]),
            size(entry["num_bytes"]),
            "complete" if entry["is_complete"] else "not complete: no COMPLETE marker",
        )
        for entry in record.checkpoints
    ]
    return Sheet(names=("checkpoint", "files", "size", "state"), lines=lines, title=f"{record.run_id}: checkpoints")


def eval_table(record: RunRecord) -> Sheet | None:
    """The evaluation that a run's result holds, None for other runs."""
    sets = (record.result or {}).get("eval")
    if not isinstance(sets, dict) or not sets:
        return None
    lines = [
        (
            name,
            f"{found['num_problems']} × {found['num_samples']}"
            + (f" ({found['num_dropped']} too long to ask)" if found["num_dropped"] else ""),
            with_error(found["mean"], found.get("standard_error")),
            percent(found["pass_at"][-1]),
            percent(found["maj_at"][-1]),
        )
        for name, found in sorted(sets.items())
    ]
    names = ("data set", "problems × answers", "mean@n", "pass@n", "maj@n")
    caption = "percent ± standard error, clustered by problem"
    return Sheet(names=names, lines=lines, title=f"{record.run_id}: evaluation", caption=caption)


def numbers_table(record: RunRecord) -> Sheet | None:
    """What the scorer of an evaluation returned beside the accuracy and the reward, None where there is nothing."""
    lines = [
        (one_line(source), one_line(name), plain_with_error(item["mean"], item.get("standard_error")), str(item["num_answers"]))
        for source, found in sorted(((record.result or {}).get("eval") or {}).items())
        for name, item in sorted(found["numbers"].items())
    ]  # fmt: skip
    if not lines:
        return None
    names = ("data set", "number", "mean@n", "answers that have it")
    return Sheet(names=names, lines=lines, title=f"{record.run_id}: further numbers of the scorer")


def status_screen(record: RunRecord, attempts: Sequence[AttemptLine]) -> Group:
    """One screen: how the run stands, its attempts, its checkpoints, and what is wrong."""
    rows: list[tuple[str, str | Text]] = [
        ("run", record.run_id),
        ("kind", record.kind or "?"),
        ("model", redact(record.model) or "–"),
        ("state", Text(record.state, style=STYLES.get(record.state, ""))),
        ("step", progress_text(record)),
        ("loss", number(record.loss)),
        ("score", score_text(record.rollout_score)),
        ("validation", Text("\n".join(validation_lines(record)) or "–")),
        ("time left", duration(record.eta_s) if record.eta_s is not None else "–"),
        ("last sign", ago(record.last_sign_s)),
        ("checkpoints", ", ".join(map(str, record.complete_steps)) or "none complete"),
        ("store", Text(redact(record.url))),
    ]
    if attempts and (progress := attempts[-1].progress) is not None:
        rows.append(("progress", Text(progress_line(progress), style=STYLES["silent"] * progress.is_stuck)))
    lines = [
        (str(line.attempt), one_line(line.host), ago(line.started_at_s), redact(line.end or "not yet"))
        for line in attempts
    ]
    table = Sheet(names=("attempt", "host", "started", "ended"), lines=lines, title="attempts")
    warnings = [Text(f"warning: {redact(problem)}", style="yellow") for problem in record.problems]
    warnings = [Text(f"fault {redact(str(fault))}", style="yellow") for fault in record.faults] + warnings
    if record.detail:
        warnings.insert(0, Text(f"{record.state}: {redact(record.detail)}", style=STYLES.get(record.state, "")))
    return Group(facts(rows), table, *warnings)


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


def score_text(score: Score | None) -> str:
    """`61.3 %` of a share, any other score as it is."""
    if score is None:
        return "–"
    return f"{percent(score.value)} %" if score.is_share else number(score.value)


def with_error(value: float, error: float | None) -> str:
    """`43.3 ± 7.1` in percent, the value alone where there is no error."""
    return percent(value) if error is None or error != error else f"{percent(value)} ± {percent(error)}"


def plain_with_error(value: float, error: float | None) -> str:
    """`0.433 ± 0.071` of what need not be a share, the value alone where there is no error."""
    return number(value) if error is None or error != error else f"{number(value)} ± {number(error)}"


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
