"""The table of the last whole run, for people: tests/e2e/RESULTS.md."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("RESULTS.md")
_HEAD = """# On the one-node cluster: the last run of `make e2e`

Written by the run. Each scenario leaves evidence in `build/e2e/SCENARIO`, and every row is judged from the evidence alone.

{num_kept} of {num} promises kept in {minutes:.0f} minutes ({date}, commit {commit}, {num_cores} cores).

| scenario | promise | observed | s | kept |
| --- | --- | --- | ---: | --- |
"""


def write(rows: list[dict[str, Any]], *, seconds: float, commit: str) -> None:
    """Write the rows of summary.json as a table, a scenario's seconds in its first row."""
    head = _HEAD.format(
        num_kept=sum(row["ok"] for row in rows),
        num=len(rows),
        minutes=seconds / 60,
        date=datetime.date.today().isoformat(),
        commit=commit,
        num_cores=os.cpu_count(),
    )
    lines, last = [], ""
    for row in rows:
        is_first, last = row["scenario"] != last, row["scenario"]
        cells = [
            row["scenario"] if is_first else "",
            row["promise"],
            _cell(row["observed"]),
        ]
        cells += [f"{row['seconds']:.0f}" if is_first else "", "yes" if row["ok"] else "**no**"]
        lines.append(f"| {' | '.join(cells)} |")
    TABLE.write_text(head + "\n".join(lines) + "\n")


def _cell(text: str) -> str:
    """One line without the table's bars, and without the name of whose machine it was."""
    return " ".join(text.replace("|", "·").replace(str(Path.home()), "~").split())
