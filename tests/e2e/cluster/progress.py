"""How a cluster that comes up in its own namespaces tells the command outside how far it is: a file of JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY, FAILED = "ready", "failed"


class Progress:
    """Writes one line for each part that is up, then `ready` or `failed`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Say that a part is up, with the seconds it took, unless the block raises."""
        begin = time.monotonic()
        yield
        self._write({"part": name, "seconds": round(time.monotonic() - begin, 1)})

    def ready(self) -> None:
        """The whole cluster is up."""
        self._write({READY: True})

    def failed(self, reason: str) -> None:
        """The cluster cannot come up."""
        self._write({FAILED: reason})

    def _write(self, line: dict[str, Any]) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")


def lines(path: Path, *, start: int = 0) -> list[dict[str, Any]]:
    """The whole lines from the `start`-th on."""
    text = path.read_text() if path.is_file() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()[start:]]
