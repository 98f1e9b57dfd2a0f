"""A quickstart's measurements: estimates with standard errors, as a table and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


def share(num_right: float, num_all: int) -> Estimate:
    """Return a share with its binomial standard error."""
    mean = num_right / num_all
    return Estimate(mean, math.sqrt(mean * (1 - mean) / num_all))


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values."""
    return Estimate(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)))


class Report(NamedTuple):
    """The measurements of a finished run.

    Attributes:
        columns: by title the estimates of each model, by its label.
        facts: further entries of `result.json`.
        heldout: held-out accuracy by training step, for the picture.
        teacher: the teacher's held-out accuracy.
        title: of the picture.
        notes: lines under the table.
    """

    columns: Mapping[str, Mapping[str, Estimate]]
    facts: Mapping[str, Any]
    heldout: Sequence[tuple[int, float]]
    teacher: float
    title: str
    notes: Sequence[str]


def print_report(report: Report, result: Mapping[str, Any], picture: Path) -> None:
    """Print the table, its notes and the times."""
    table = Table()
    table.add_column("model")
    for title in report.columns:
        table.add_column(title, justify="right")
        table.add_column("± s.e.", justify="right")
    for label in next(iter(report.columns.values())):
        cells = [found.get(label) for found in report.columns.values()]
        table.add_row(label, *(text for cell in cells for text in _shown(cell)))
    console = Console()
    console.print()
    console.print(table)
    for note in report.notes:
        console.print(note, soft_wrap=True, markup=False, highlight=False)
    console.print(
        f"{result['steps']} steps; start-up {result['startup_seconds']:.0f} s, training {result['train_seconds']:.0f} s, "
        f"in all {result['wall_seconds']:.0f} s; peak memory {result['peak_pss_gib']:.1f} GiB"
    )
    console.print(f"learning curve: {picture}\nmodel: {picture.parent / 'model'}", soft_wrap=True)


def _shown(cell: Estimate | None) -> tuple[str, str]:
    return ("", "") if cell is None else (f"{cell.mean:.3f}", f"{cell.error:.3f}")
