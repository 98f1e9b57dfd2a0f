"""Draws the curves of a report: one small SVG picture a quantity, one line a run; of many runs only a few are named."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opdctl.runs.history import series


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture: its title, the unit on its axis, and the metrics that it draws, the first that a run logged."""

    title: str
    unit: str
    metrics: tuple[str, ...]
    scale: float = 1.0


PANELS = (
    Panel(title="Loss", unit="", metrics=("opd/loss", "actor/pg_loss")),
    Panel(title="Accuracy of the training answers", unit="%", metrics=("opd/accuracy", "critic/score/mean"), scale=100),
    Panel(title="Entropy of the student", unit="nats", metrics=("opd/entropy", "actor/entropy")),
    Panel(title="Gradient norm", unit="", metrics=("opd/grad_norm", "actor/grad_norm")),
    Panel(title="Response length", unit="tokens", metrics=("response_length/mean",)),
    Panel(title="Throughput", unit="tokens/s", metrics=("perf/throughput",)),
    Panel(title="Step time", unit="s", metrics=("timing/step_s", "timing_s/step")),
)
# Longer curves are drawn as the mean of equally many neighbouring steps: a page must stay small.
MAX_POINTS = 600
# Of a picture, over all of its runs; each keeps MIN_POINTS.
MAX_POINTS_OF_ALL = 12_000
MIN_POINTS = 40
# With more of them the marks would hide the line.
MAX_MARKED_POINTS = 40
# With more runs a legend would hide the picture: those that end highest and lowest are named, and the base.
MAX_NAMED_RUNS = 10
NUM_NAMED_ENDS = 3
MAX_DRAWN = 1e100

# Steps and values of one run, `[num_points]` each.
Points = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A picture ready for an <img>; `caption` names what was averaged or left unnamed, empty where nothing was."""

    title: str
    uri: str
    caption: str


def draw_all(runs: Iterable[tuple[str, pa.Table]], *, num_runs: int) -> list[Curve]:
    """Validation accuracy first, then every panel that at least one of the runs has values for.

    Args:
        runs: id and merged metrics of each, the base first; one table is held at a time.
        num_runs: how many there are.
    """
    num_points = min(MAX_POINTS, max(MAX_POINTS_OF_ALL // max(num_runs, 1), MIN_POINTS))
    found: dict[Panel, dict[str, Points]] = {panel: {} for panel in PANELS}
    widths: dict[Panel, int] = {}
    for run_id, table in runs:
        validations = [_validation_panel(name) for name in table.column_names if _is_validation(name)]
        for panel in (*validations, *PANELS):
            logged = next((both for name in panel.metrics if len((both := series(table, name))[0])), None)
            if logged is None:
                continue
            steps, values, width = thin(*logged, max_points=num_points)
            # Axes cannot reach over what a float can just hold.
            drawable = np.where(np.abs(values) <= MAX_DRAWN, values, np.nan)
            found.setdefault(panel, {})[run_id] = (steps, panel.scale * drawable)
            widths[panel] = max(width, widths.get(panel, 1))
    validations = sorted(found.keys() - set(PANELS), key=lambda panel: panel.metrics)
    return [_draw(panel, found[panel], widths[panel]) for panel in (*validations, *PANELS) if found[panel]]


def thin(steps: np.ndarray, values: np.ndarray, *, max_points: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray, int]:
    """At most `max_points` points, each the mean of `width` neighbours (the last one of what is left); and `width`."""
    width = -(-len(values) // max_points) if len(values) else 1
    if width == 1:
        return steps, values, 1
    starts = np.arange(0, len(values), width)
    counts = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts, width


def named_runs(lines: Mapping[str, Points]) -> list[str]:
    """Whom the legend names, in its order: all of a few runs; of many those that end highest, the base, the lowest."""
    if len(lines) <= MAX_NAMED_RUNS:
        return list(lines)
    base = next(iter(lines))
    ranked = sorted(lines, key=lambda run_id: -lines[run_id][1][-1])
    return list(dict.fromkeys([*ranked[:NUM_NAMED_ENDS], base, *ranked[-NUM_NAMED_ENDS:]]))


def _is_validation(name: str) -> bool:
    return name.startswith("val-core/") and "/acc/mean@" in name and not name.endswith("/stderr")


def _validation_panel(name: str) -> Panel:
    return Panel(title=f"Validation: {name.split('/')[1]} {name.split('/')[-1]}", unit="%", metrics=(name,), scale=100)


def _draw(panel: Panel, lines: Mapping[str, Points], width: int) -> Curve:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    named = named_runs(lines)
    num_others = len(lines) - len(named)
    figure = Figure(figsize=(4.6, 3.5 if num_others else 2.7), layout="constrained")
    axes = figure.add_subplot()
    for run_id in (run_id for run_id in lines if run_id not in named):
        axes.plot(*lines[run_id], color="#aab4bf", linewidth=0.5, alpha=0.6)
    for number, run_id in enumerate(named):
        steps, values = lines[run_id]
        is_base = num_others > 0 and run_id == next(iter(lines))
        marker = "o" if len(steps) <= MAX_MARKED_POINTS and not num_others else ""
        axes.plot(
            steps,
            values,
            color="black" if is_base else f"C{number % 10}",
            linewidth=1.4,
            label=run_id.replace("$", r"\$"),  # a dollar begins a formula
            marker=marker,
            markersize=3,
        )
    axes.set(xlabel="step", ylabel=panel.unit)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if num_others:
        figure.legend(fontsize=7, frameon=False, loc="outside lower center", ncols=2)
    elif len(lines) > 1:
        axes.legend(fontsize=7, frameon=False)
    buffer = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    uri = "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
    remarks = [f"each point the mean of {width} steps"] if width > 1 else []
    if num_others:
        remarks.append(f"named: the {NUM_NAMED_ENDS} runs that end highest, the base (black), the {NUM_NAMED_ENDS} lowest; grey: {num_others} others")  # fmt: skip
    return Curve(title=panel.title, uri=uri, caption="; ".join(remarks))
