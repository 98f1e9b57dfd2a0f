"""Owns the curves of a report: one small SVG picture a quantity, every run a line."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opdctl.history import series


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
# With more of them the marks would hide the line.
MAX_MARKED_POINTS = 40


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A picture ready for an <img>; `caption` names what was averaged, empty where every point is drawn."""

    title: str
    uri: str
    caption: str


def draw_all(runs: Sequence[tuple[str, pa.Table]]) -> list[Curve]:
    """Validation accuracy first, then every panel that at least one of the runs has values for."""
    names = sorted({name for _, table in runs for name in table.column_names if _is_validation(name)})
    validations = [
        Panel(title=f"Validation: {name.split('/')[1]} {name.split('/')[-1]}", unit="%", metrics=(name,), scale=100)
        for name in names
    ]
    return [curve for panel in (*validations, *PANELS) if (curve := _draw(panel, runs)) is not None]


def thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """At most MAX_POINTS points, each the mean of `width` neighbours (the last one of what is left); and `width`."""
    width = -(-len(values) // MAX_POINTS) if len(values) else 1
    if width == 1:
        return steps, values, 1
    starts = np.arange(0, len(values), width)
    counts = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts, width


def _is_validation(name: str) -> bool:
    return name.startswith("val-core/") and "/acc/mean@" in name and not name.endswith("/stderr")


def _draw(panel: Panel, runs: Sequence[tuple[str, pa.Table]]) -> Curve | None:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 2.7), layout="constrained")
    axes = figure.add_subplot()
    widths = set()
    for number, (run_id, table) in enumerate(runs):
        metric = next((name for name in panel.metrics if len(series(table, name)[0])), None)
        if metric is None:
            continue
        steps, values, width = thin(*series(table, metric))
        widths.add(width)
        marker = "o" if len(steps) <= MAX_MARKED_POINTS else ""
        axes.plot(
            steps,
            panel.scale * values,
            color=f"C{number % 10}",
            linewidth=1.4,
            label=run_id,
            marker=marker,
            markersize=3,
        )
    if not widths:
        return None
    axes.set(xlabel="step", ylabel=panel.unit)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(runs) > 1:
        axes.legend(fontsize=7, frameon=False)
    buffer = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    uri = "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
    width = max(widths)
    return Curve(title=panel.title, uri=uri, caption=f"each point the mean of {width} steps" if width > 1 else "")
