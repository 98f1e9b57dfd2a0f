"""The table of the last whole run, for people: tests/e2e/RESULTS.md."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("RESULTS.md")
_HEAD = """# On the one-node cluster: the last run of `make e2e`

Written by the run. Each scenario leaves raw evidence in `build/e2e/SCENARIO`; every row is judged from it alone, and again by
`make e2e-verify`.

{num_kept} of {num} promises kept in {minutes:.0f} minutes ({date}, commit {commit}, {num_cores} cores).

| scenario | promise | observed | s | kept |
| --- | --- | --- | ---: | --- |
"""


_RECOVERIES = """
## From a loss to the next optimizer step

Seconds, from the kill (or the request to go, or the resume) to the end of the first step that the next attempt trains; then by part, one after
the other. Ray's own start is that of the run's first cluster: from its head's container until all its pods are ready.

"""


def write(
    rows: list[dict[str, Any]], *, recoveries: Sequence[str], seconds: float, commit: str, path: Path = TABLE
) -> None:
    """Write the rows of summary.json as a table, a scenario's seconds in its first row; then that of `promises.recovery`."""
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
    path.write_text(head + "\n".join(lines) + "\n" + _RECOVERIES + "\n".join(recoveries) + "\n")


def _cell(text: str) -> str:
    """One line without the table's bars, and without the name of whose machine it was."""
    return " ".join(text.replace("|", "·").replace(str(Path.home()), "~").split())
