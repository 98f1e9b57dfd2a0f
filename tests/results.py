"""Tables of whole runs; the runs write them next to their code."""

import datetime
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.commit import this_commit


def write_results(
    path: Path, head: str, columns: Sequence[str], rows: Iterable[Sequence[object]], commit: str = ""
) -> None:
    """Write a table below its head, with day, commit, Python and cores, without the name of the machine's user.

    Args:
        commit: of the code that ran; by default the one that is checked out.
    """
    day, commit = datetime.date.today().isoformat(), commit or this_commit(path)
    facts = f"{day}, commit {commit}, Python {platform.python_version()}, {os.cpu_count()} cores."
    lines = [head, "", facts, "", _line(columns), _line(["---"] * len(columns)), *map(_line, rows)]
    path.write_text("\n".join(lines) + "\n")


def _line(cells: Sequence[object]) -> str:
    texts = (str(cell).replace("|", "·").replace(str(Path.home()), "~") for cell in cells)
    return f"| {' | '.join(' '.join(text.split()) for text in texts)} |"
