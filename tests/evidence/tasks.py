"""The runs of the studies: what one is, how a worker performs it, and the log of those that ended."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tests.evidence import models
from tests.evidence.cells import RAW, START, Cell
from tests.evidence.measure import measure, pass_rates
from tests.evidence.settings import Settings
from tests.evidence.train import run_cell


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run, or with no cell the measurement of its learner."""

    cell: Cell | None
    seed: int
    settings: Settings
    folder: Path
    device: str
    learner: str
    """Name of a model, as `teacher`."""
    teacher: str | None = None
    start: dict[str, Any] | None = None
    """What the measurement of the learner found."""

    @property
    def key(self) -> str:
        """Identity of the result: cell, settings, and the models' bits. A line with another key is another experiment's."""
        cell = None if self.cell is None else asdict(self.cell) | {"tokens": self.cell.tokens.model_dump()}
        names = [name for name in (self.learner, self.teacher) if name is not None]
        parts = [cell, self.seed, asdict(self.settings), *(models.sha256(self.folder, name) for name in names)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def is_done(self, log: Log) -> bool:
        """Whether the line is there, and the teacher that it tells of."""
        trains_teacher = self.cell is not None and self.cell.learner == RAW
        return log.of(self) is not None and not (
            trains_teacher and not models.path_of(self.folder, self.product).exists()
        )

    @property
    def product(self) -> str:
        """Name of the teacher that the run leaves, if its cell is a teacher's."""
        return f"{self.cell and self.cell.name}-{self.key}"


def perform(task: Task) -> dict[str, Any]:
    """In a worker: one line of the log."""
    device = torch.device(task.device)
    line: dict[str, Any] = {"key": task.key, "cell": task.cell and task.cell.name, "seed": task.seed}
    if task.cell is None:
        model = models.load(task.folder, task.learner, device)
        found: dict[str, Any] = {"model": task.learner, "measured": measure(model, task.settings, seed=task.seed)}
        if task.learner in (models.learner_name(learner, task.seed) for learner in (START, RAW)):
            found["pass_rates"] = pass_rates(model, task.settings, seed=task.seed)
        return line | found
    assert task.start is not None
    start = {"pass_rates": task.start["pass_rates"], "response_length": task.start["measured"]["response_length"]}
    named = {"learner": task.learner, "teacher": task.teacher, "start": start}
    return line | run_cell(
        task.cell, task.settings, seed=task.seed, folder=task.folder, device=device, product=task.product, **named
    )


class Log:
    """The lines of all runs that ended; what is there is not run again."""

    def __init__(self, path: Path):
        self._path = path
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a line that was cut off by a kill never ended
        if whole != text:
            path.write_text(whole)
        self._lines = {line["key"]: line for line in map(json.loads, whole.splitlines())}

    def of(self, task: Task) -> dict[str, Any] | None:
        return self._lines.get(task.key)

    def __getitem__(self, task: Task) -> dict[str, Any]:
        return self._lines[task.key]

    def add(self, line: dict[str, Any]) -> None:
        self._lines[line["key"]] = line
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
