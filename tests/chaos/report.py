"""The table of the last runs: one JSON file of rows, and the same as Markdown for the repository."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).parent / "RESULTS.md"
TITLE = "Faults: the last run of `make chaos`"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scenario as it last ran; `commit` ends in `+` where the work tree had changes."""

    scenario: str
    done: str
    promised: str
    observed: str
    seconds: float
    ok: bool
    date: str
    commit: str


def read_rows(path: Path) -> dict[str, Row]:
    """Rows of earlier runs by scenario; none if there were none."""
    return {record["scenario"]: Row(**record) for record in json.loads(path.read_text())} if path.exists() else {}


def write(rows: list[Row], path: Path, table: Path, title: str = TITLE, *, not_run: Sequence[str] = ()) -> None:
    """Both files, from the same rows; scenarios that have no row yet are named."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1, ensure_ascii=False) + "\n")
    table.write_text(markdown(rows, title, not_run=not_run))


def markdown(rows: list[Row], title: str = TITLE, *, not_run: Sequence[str] = ()) -> str:
    """The table with what it was made with."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("verl", "torch", "ray"))
    lines = [
        f"# {title}",
        "",
        "Written by the run. Each row breaks a real run of the trainer (`specs/chaos.yaml`: 8 steps, a checkpoint each, fp32 on a",
        "CPU). “Equal” means: against the uninterrupted run, the last checkpoint's model, optimizer, scheduler, rng and data",
        "position bit for bit, the merged metrics row by row and key by key but for times, the result, and attempts numbered",
        "without a gap; metrics, result and checkpoint read from the store alone.",
        "",
        f"{sum(row.ok for row in rows)} of {len(rows)} ok in {sum(row.seconds for row in rows) / 60:.0f} minutes; "
        f"Python {platform.python_version()}, {os.cpu_count()} cores; {packages}.",
        "",
        "| scenario | done | promised | observed | s | ok | date, commit |",
        "| --- | --- | --- | --- | ---: | --- | --- |",
    ]
    for row in rows:
        cells = (
            row.scenario,
            row.done,
            row.promised,
            row.observed,
            f"{row.seconds:.0f}",
            "yes" if row.ok else "**NO**",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
                     + f" | {row.date}, {row.commit} |")  # fmt: skip
    if not_run:
        lines += ["", f"No result yet: {', '.join(not_run)}."]
    return "\n".join(lines) + "\n"
