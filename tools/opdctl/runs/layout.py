"""Lays tables out for the screen that there is: no cell is cut short, however narrow it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

Cell = str | Text
_PADDING = 3  # a border and a space on each side of a column


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table that fits any screen.

    Where the lines do not fit, an `overview` leaves its last columns out; anything else wraps between words, and on a
    screen that is too narrow for that writes each line as a block of names and values.
    """

    names: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    title: str = ""
    caption: str = ""
    is_overview: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        whole = [max(map(_longest_line, column)) for column in self._columns()]
        num = len(whole)
        if self.is_overview:
            while num > 2 and _width(whole[:num]) > options.max_width:
                num -= 1
        if _width(whole[:num]) <= options.max_width:
            yield self._table(whole[:num], wraps=False)
            return
        if self.is_overview:
            yield self._table([None] * num, wraps=True)
            return
        words = [max(map(_longest_word, column)) for column in self._columns()]
        if (room := options.max_width - _width(words)) >= 0:
            yield self._table(_shared(words, whole, room), wraps=True)
        else:
            yield from self._blocks()

    def _columns(self) -> Iterator[list[Cell]]:
        for index, name in enumerate(self.names):
            yield [name, *(line[index] for line in self.lines)]

    def _table(self, widths: Sequence[int | None], *, wraps: bool) -> Table:
        """The first columns, as many as there are widths; None leaves a width to Rich."""
        table = Table(title=self.title or None, title_justify="left", caption=self.caption or None)
        for name, width in zip(self.names, widths, strict=False):
            table.add_column(name, overflow="fold", width=width, no_wrap=not wraps)
        for line in self.lines:
            table.add_row(*line[: len(widths)])
        return table

    def _blocks(self) -> Iterator[RenderableType]:
        if self.title:
            yield Text(self.title, style="italic")
        for line in self.lines:
            yield facts((name, cell) for name, cell in zip(self.names, line, strict=True) if str(cell) not in ("", "–"))
        if self.caption:
            yield Text(self.caption, style="italic")


def facts(rows: Iterable[tuple[str, Cell]]) -> Table:
    """Names and values below each other."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _width(columns: Sequence[int]) -> int:
    """Of a table with columns of these widths."""
    return sum(columns) + _PADDING * len(columns) + 1


def _longest_line(cell: Cell) -> int:
    return max(map(cell_len, str(cell).splitlines()), default=0)


def _longest_word(cell: Cell) -> int:
    return max(map(cell_len, str(cell).split()), default=0)


def _shared(least: Sequence[int], wanted: Sequence[int], room: int) -> list[int]:
    """Widths from `least` to `wanted` that share `room` evenly; who wants less leaves the rest to the others."""
    widths = list(least)
    order = sorted(range(len(widths)), key=lambda index: wanted[index] - least[index])
    for num_done, index in enumerate(order):
        more = min(wanted[index] - least[index], room // (len(order) - num_done))
        widths[index] += more
        room -= more
    return widths
