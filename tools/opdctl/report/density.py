"""Pictures of tokens: how many trained tokens have which entropy and which divergence."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from opd.runs.tokens import EDGES, NUM_BINS, StepTokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A picture ready for an <img>; `caption` says what it rests on, empty where that is plain."""

    title: str
    uri: str
    caption: str


def as_curve(title: str, figure: Figure, caption: str) -> Curve:
    """A drawn figure for the page."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    uri = "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
    return Curve(title=title, uri=uri, caption=caption)


# Places of the quadrants in a picture: right or left, top or bottom.
_CORNERS = {"Q1": (1, 1), "Q2": (1, 0), "Q3": (0, 1), "Q4": (0, 0)}
# Bins at whole decades, which the axes name.
_DECADES = range(0, len(EDGES), 6)


@dataclass(frozen=True, kw_only=True)
class Quadrants:
    """TIP's quadrants: high is above the step's median; Q1 both, Q2 entropy only, Q3 divergence only, Q4 neither.

    A bin that a median lies in counts in parts, as if its tokens were spread evenly over it.
    """

    entropy: float
    """Where the median lies, in bins from 0 to NUM_BINS."""
    divergence: float
    of_all: dict[str, float]
    """Share of the tokens in each."""
    of_kept: dict[str, float]
    """The same of those in the loss; 0 where there is none."""


def counts(step: StepTokens) -> np.ndarray:
    """[bins, bins, 2] tokens by bin of entropy and of divergence: all, and those in the loss."""
    out = np.zeros((NUM_BINS, NUM_BINS, 2))
    for h, d, *numbers in step.density:
        out[h, d] = numbers
    return out


def quadrants(density: np.ndarray) -> Quadrants:
    """From `counts` [bins, bins, 2] with at least one token."""
    medians = [_median(density[..., 0].sum(axis=other)) for other in (1, 0)]
    h, d = (np.clip(np.arange(1, NUM_BINS + 1) - median, 0, 1) for median in medians)
    high = {"Q1": np.outer(h, d), "Q2": np.outer(h, 1 - d), "Q3": np.outer(1 - h, d), "Q4": np.outer(1 - h, 1 - d)}
    of_all, of_kept = (
        {name: float((numbers * share).sum() / max(numbers.sum(), 1)) for name, share in high.items()}
        for numbers in np.moveaxis(density, 2, 0)
    )
    return Quadrants(entropy=medians[0], divergence=medians[1], of_all=of_all, of_kept=of_kept)


def _median(numbers: np.ndarray) -> float:
    """Where half of the tokens lie below, in bins."""
    below = np.concatenate([[0.0], numbers.cumsum()])
    place = int(np.searchsorted(below, below[-1] / 2, side="right")) - 1
    return place + float((below[-1] / 2 - below[place]) / numbers[place])


def draw_all(steps: Sequence[StepTokens]) -> list[Curve]:
    """Pictures of the first of the steps and of the last, as far as they have tokens."""
    ends = {step.step: step for step in (*steps[:1], *steps[-1:]) if step.density}
    return [picture for step in ends.values() for picture in draw(step)]


def draw(step: StepTokens) -> list[Curve]:
    """The density; where tokens were chosen and all are known, the share in the loss too."""
    from matplotlib.colors import LogNorm, Normalize

    density = counts(step)
    found = quadrants(density)
    every = np.where(density[..., 0] > 0, density[..., 0], np.nan)
    name = "trained tokens" if step.covers_all else "tokens in the loss"
    remark = "" if step.covers_all else "of the others the divergence was not computed; "
    caption = f"{remark}lines: medians; shares of the {name} in TIP's quadrants, to within a bin"
    figure = _figure(every, found, found.of_all, "Blues", LogNorm(vmin=0.5), "tokens")
    pictures = [as_curve(f"Step {step.step}: {name}", figure, caption)]
    if step.score != "none" and step.covers_all:
        figure = _figure(density[..., 1] / every, found, found.of_kept, "Greens", Normalize(0, 1), "share")
        caption = f"chosen by {step.score}, ratio {step.ratio:g}; shares of the tokens in the loss, to within a bin"
        pictures.append(as_curve(f"Step {step.step}: share in the loss", figure, caption))
    return pictures


def _figure(values: np.ndarray, found: Quadrants, shares: dict[str, float], colours: str, norm: Any, unit: str) -> Any:
    """A picture of `values` [bins, bins] in `unit`, nan where there is nothing; its axes end where the tokens do."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.7), layout="constrained")
    axes = figure.add_subplot()
    extent = (0, NUM_BINS, 0, NUM_BINS)
    image = axes.imshow(values.T, origin="lower", extent=extent, aspect="auto", cmap=colours, norm=norm, interpolation="none")  # fmt: skip
    figure.colorbar(image, ax=axes, label=unit)
    axes.axvline(found.entropy, color="#333", linewidth=0.8)
    axes.axhline(found.divergence, color="#333", linewidth=0.8)
    for name, (x, y) in _CORNERS.items():
        axes.text(
            0.02 + 0.96 * x, 0.02 + 0.96 * y, f"{name} {100 * shares[name]:.0f} %", transform=axes.transAxes, fontsize=8,
            ha=("left", "right")[x], va=("bottom", "top")[y], bbox={"color": "white", "alpha": 0.8, "pad": 1},
        )  # fmt: skip
    axes.set(xlabel="entropy of the student, nats", ylabel="divergence, nats")
    filled = ~np.isnan(values)
    for axis, is_filled, limit in ((axes.xaxis, filled.any(axis=1), axes.set_xlim), (axes.yaxis, filled.any(axis=0), axes.set_ylim)):  # fmt: skip
        places = is_filled.nonzero()[0]
        axis.set_ticks([1 + k for k in _DECADES], [f"$10^{{{round(math.log10(EDGES[k]))}}}$" for k in _DECADES])
        limit(max(places[0] - 2, 0), min(places[-1] + 3, NUM_BINS))
    return figure
