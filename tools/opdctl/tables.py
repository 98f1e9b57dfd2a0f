"""Tables of plain columns, and numbers and times as texts."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opd.redaction import one_line, redact, redact_tree

NONE = "–"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table; cells are texts, and a cell of several lines is one line on a terminal."""

    names: Sequence[str]
    lines: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""

    def __str__(self) -> str:
        """Return columns of text without borders, one line a row."""
        cells = redact_tree([self.names, *self.lines])
        rows = [["; ".join(cell.split("\n")).replace("\t", " ") or NONE for cell in row] for row in cells]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        texts = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(filter(None, [redact(self.title), *texts, self.caption]))


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values that are known, one pair a line."""
    return "\n".join(f"{name:13s}{one_line(value)}" for name, value in rows if value not in ("", NONE))


def number(value: float | None) -> str:
    """Return four significant digits."""
    return NONE if value is None else f"{value:.4g}"


def percent(value: float | None) -> str:
    """Return a share in percent, such as `12.5 %`."""
    return NONE if value is None else f"{100 * value:.1f} %"


def with_error(value: float, error: float | None, *, sign: str = "") -> str:
    """Return `0.433 ± 0.071`; a dash where there is no error."""
    return f"{value:{sign}.4g} ± {NONE if error is None or error != error else f'{error:.2g}'}"


def duration(seconds: float | None) -> str:
    """Return `45 s`, `12 min`, `3 h 20 min` or `2 d`."""
    if seconds is None:
        return NONE
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 / 60:.0f} min"
    return f"{seconds / 86400:.0f} d"


def ago(time_s: float) -> str:
    """Return the time since a moment; a dash for 0."""
    return f"{duration(max(time.time() - time_s, 0))} ago" if time_s else NONE


def moment(time_s: float) -> str:
    """Return `2026-11-22 18:03 UTC`; a dash for 0."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_s)) if time_s else NONE
