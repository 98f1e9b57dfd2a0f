"""A matplotlib figure as a picture within the page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
