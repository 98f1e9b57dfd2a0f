"""The raw evidence of a scenario: files below build/e2e/SCENARIO."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any


class Evidence:
    """A folder of files; `seconds` counts from its making."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self._begin = time.monotonic()

    def text(self, name: str, content: str) -> None:
        """Keep what a command printed."""
        (self.folder / name).write_text(content)

    def append(self, name: str, content: str) -> None:
        """Keep what another call of the same command printed."""
        with open(self.folder / name, "a") as file:
            file.write(content)

    def data(self, name: str, content: bytes) -> None:
        """Keep a file as it is; the name may have folders."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def tree(self, name: str, content: Any) -> None:
        """Keep objects as JSON."""
        (self.folder / name).write_text(json.dumps(content, indent=1, sort_keys=True))

    @property
    def seconds(self) -> float:
        """Seconds since the scenario began."""
        return round(time.monotonic() - self._begin, 1)
