"""The scripts and styles that a report contains.

uPlot (MIT, https://github.com/leeoniya/uPlot) is kept unchanged: the npm package uplot, version 1.6.32,
dist/uPlot.iife.min.js, dist/uPlot.min.css and LICENSE.
"""

from __future__ import annotations

from importlib.resources import files

UPLOT = "uplot-1.6.32.min.js"
SHA256 = {
    UPLOT: "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
SCRIPTS = (UPLOT, "curves.js")
STYLES = ("uplot-1.6.32.min.css", "report.css")
NOTICE = "uplot-LICENSE"


def read(name: str) -> str:
    """Return an asset's text."""
    return (files("opdctl.report") / "assets" / name).read_text(encoding="utf-8")
