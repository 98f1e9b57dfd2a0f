"""Tables for people: plain columns in a pipe, boxes on a terminal that no cell is cut short in."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from opd.redaction import one_line
from opd.runs.headline import VALIDATION_PREFIX
from opdctl.runs.attempts import Progress
from opdctl.runs.record import RunRecord, is_validation_accuracy

Cell = str | Text
STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "invalid": "bold red",
    "unreadable": "bold red",
    **dict.fromkeys(("silent", "stopped", "retrying", "suspended", "deleting"), "yellow"),
}
NONE = "–"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table; an overview leaves out last columns that do not fit a terminal, other tables wrap."""

    names: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    title: str = ""
    caption: str = ""
    is_overview: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        widths = [
            max(cell_len(part) for cell in column for part in str(cell).splitlines() or [""]) for column in self.columns
        ]
        num = len(widths)
        while self.is_overview and num > 2 and sum(widths[:num]) + 3 * num + 1 > options.max_width:
            num -= 1
        table = Table(title=self.title or None, title_justify="left", caption=self.caption or None)
        for name in self.names[:num]:
            table.add_column(name, overflow="fold")
        for line in self.lines:
            table.add_row(*line[:num])
        yield table

    @property
    def columns(self) -> list[tuple[Cell, ...]]:
        return list(zip(self.names, *self.lines, strict=True))

    def plain(self) -> str:
        """Return the table as columns of text without borders, one line a row."""
        columns = [["; ".join(str(cell).splitlines()) or NONE for cell in column] for column in self.columns]
        widths = [max(map(cell_len, column)) for column in columns]
        rows = ("  ".join(f"{cell}{' ' * (w - cell_len(cell))}" for cell, w in zip(row, widths, strict=True)).rstrip()
                for row in zip(*columns, strict=True))  # fmt: skip
        return "\n".join([*filter(None, [self.title]), *rows])


def show(*parts: RenderableType | None) -> None:
    """Print tables and texts on stdout, for a terminal or for a pipe."""
    from opdctl.console import stdout

    for part in parts:
        if isinstance(part, Sheet) and not sys.stdout.isatty():
            print(part.plain())
        elif part is not None:
            stdout().print(part)


def facts(rows: Iterable[tuple[str, Cell]]) -> Table:
    """Return names and values, one pair a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, style=STYLES.get(state, ""))


def runs_table(records: Sequence[RunRecord]) -> Sheet:
    """Return one row a run: state, progress, loss, accuracies, newest checkpoint."""
    names = ("run", "kind", "state", "try", "step", "loss", "train acc", "validation", "checkpoint", "last sign")
    lines = [
        (
            record.run_id,
            record.kind or "?",
            state_text(record.state),
            str(record.num_attempts),
            progress_text(record),
            number(record.loss),
            training_text(record),
            "\n".join(validation_lines(record)) or NONE,
            str(record.complete_steps[-1]) if record.complete_steps else NONE,
            ago(record.last_sign_s),
        )
        for record in records
    ]
    return Sheet(names=names, lines=lines)


def checkpoints_table(record: RunRecord) -> Sheet | None:
    """Return every checkpoint of one run; None without any."""
    lines = [
        (
            f"global_step_{entry['step']}",
            str(entry["num_files"]),
            size(entry["num_bytes"]),
            "complete" if entry["is_complete"] else "not complete: no COMPLETE marker",
        )
        for entry in record.checkpoints
    ]
    names = ("checkpoint", "files", "size", "state")
    return Sheet(names=names, lines=lines, title=f"{record.run_id}: checkpoints") if lines else None


def eval_table(record: RunRecord) -> Sheet | None:
    """Return the evaluation in a run's result; None for other runs."""
    lines = [
        (
            name,
            f"{found['num_problems']} × {found['num_samples']}"
            + (f" ({found['num_dropped']} too long)" if found["num_dropped"] else ""),
            with_error(found["mean"], found.get("standard_error")),
            percent(found["pass_at"][-1]),
            percent(found["maj_at"][-1]),
        )
        for name, found in sorted(((record.result or {}).get("eval") or {}).items())
    ]
    names = ("data set", "problems × answers", "mean@n", "pass@n", "maj@n")
    caption = "percent ± standard error, clustered by problem"
    return Sheet(names=names, lines=lines, title=f"{record.run_id}: evaluation", caption=caption) if lines else None


def numbers_table(record: RunRecord) -> Sheet | None:
    """Return the further numbers of an evaluation's scorer; None without any."""
    lines = [
        (one_line(source), one_line(name), plain_with_error(item["mean"], item.get("standard_error")), str(item["num_answers"]))
        for source, found in sorted(((record.result or {}).get("eval") or {}).items())
        for name, item in sorted(found["numbers"].items())
    ]  # fmt: skip
    names = ("data set", "number", "mean@n", "answers that have it")
    title = f"{record.run_id}: further numbers of the scorer"
    return Sheet(names=names, lines=lines, title=title) if lines else None


def progress_line(progress: Progress) -> str:
    """Return `rollout at step 7, 12 s ago`, or how long there has been no progress."""
    where = one_line(progress.where)
    if progress.is_stuck and progress.limit_s is not None:
        return f"no progress for {duration(progress.silent_s)} ({where}); ended after {duration(progress.limit_s)}"
    return f"{where}, {duration(progress.silent_s)} ago"


def progress_text(record: RunRecord) -> str:
    """Return `7/40`."""
    if record.last_step is None:
        return NONE
    return f"{record.last_step}/{record.total_steps}" if record.total_steps else str(record.last_step)


def training_text(record: RunRecord) -> str:
    """Return the accuracy of the training answers in percent, or their scorer's mean as it is."""
    score = record.training_score
    if score is None:
        return NONE
    return f"{percent(score.value)} %" if score.is_share else f"{number(score.value)} (score)"


def validation_lines(record: RunRecord) -> list[str]:
    """Return `toy_add 35.4 → 82.1 %` for each validation set."""
    return [
        f"{name.removeprefix(VALIDATION_PREFIX)} {100 * first:.1f} → {100 * last:.1f} %"
        for name, (first, last) in sorted(record.validation.items())
        if is_validation_accuracy(name)
    ]


def number(value: float | None) -> str:
    """Return four significant digits."""
    return NONE if value is None else f"{value:.4g}"


def percent(value: float | None) -> str:
    """Return a share in percent, without the sign."""
    return NONE if value is None else f"{100 * value:.1f}"


def with_error(value: float, error: float | None) -> str:
    """Return `43.3 ± 7.1` in percent; the value alone without an error."""
    return percent(value) if error is None or error != error else f"{percent(value)} ± {percent(error)}"


def plain_with_error(value: float, error: float | None) -> str:
    """Return `0.433 ± 0.071`; the value alone without an error."""
    return number(value) if error is None or error != error else f"{number(value)} ± {number(error)}"


def size(num_bytes: float) -> str:
    """Return bytes as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def duration(seconds: float) -> str:
    """Return `45 s`, `12 min`, `3 h 20 min` or `2 d`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 / 60:.0f} min"
    return f"{seconds / 86400:.0f} d"


def ago(time_s: float) -> str:
    """Return the time since a moment; a dash for 0."""
    return NONE if not time_s else f"{duration(max(time.time() - time_s, 0))} ago"


def moment(time_s: float) -> str:
    """Return `2026-11-22 18:03 UTC`; a dash for 0."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_s)) if time_s else NONE
