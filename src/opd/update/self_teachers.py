"""Teachers that are the student as it was some steps ago: when they get its weights, and what a resumed run loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from opd.errors import CheckpointError
from opd.experiment.sections import Teacher
from opd.runs.manifest import step_of
from opd.update.step_metrics import TEACHER


def teachers_step(step: int, every: int) -> int:
    """Return the step after which the student had the weights that a teacher has in `step`; 0 means the start, or never."""
    return (step - 1) // every * every if every else 0


def refresh_metrics(teachers: Mapping[str, Teacher], step: int) -> dict[str, float]:
    """Return `opd/teacher_step`, or `opd/teacher/NAME/step` of several, of the teachers that are refreshed."""
    of = {key: teachers_step(step, teacher.refresh_every) for key, teacher in teachers.items() if teacher.refresh_every}
    names = {key: key.replace("teachers.", TEACHER) + "/step" for key in of} | {"teacher": "teacher_step"}
    return {f"opd/{names[key]}": float(found) for key, found in of.items()}


@dataclass(frozen=True, kw_only=True)
class SelfTeachers:
    """The teachers of a run by their keys, each with its `refresh_every`."""

    engines: Mapping[str, Any]
    every: Mapping[str, int]

    def before(self, step: int, student: Any) -> None:
        """Refresh the teachers that are due before a step; 0 means an unknown step."""
        for key, engine in self.engines.items():
            if step > 1 and teachers_step(step, self.every[key]) == step - 1:
                engine.load_local_weights(student.local_weights(), "the student's")

    def save(self, folder: Path, *, step: int) -> None:
        """Save this rank's part of the teachers that are neither the start nor the student of this checkpoint."""
        if kept := self._needed(step):
            weights = {
                key: {name: part.cpu() for name, part in self.engines[key].local_weights().items()} for key in kept
            }
            torch.save(weights, folder / _name())

    def load(self, folder: Path) -> None:
        """Load the teachers that a checkpoint's folder `actor` has."""
        step = step_of(folder.parent.name)
        if step is None and any(self.every.values()):
            raise CheckpointError(
                f"{folder}: not in a folder global_step_N, so it is not known which weights the teachers had"
            )
        if not (needed := self._needed(step or 0)):
            return
        path = folder / _name()
        if not path.exists():
            raise CheckpointError(
                f"{path}: not there, and refreshed teachers ({', '.join(needed)}) cannot be had from elsewhere"
            )
        weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        for key in needed:
            self.engines[key].load_local_weights(weights[key], f"the saved {key}'s")

    def _needed(self, step: int) -> list[str]:
        """Return the keys of the teachers that after `step` are neither the start nor the student."""
        return [key for key, every in self.every.items() if 0 < teachers_step(step + 1, every) < step]


def _name() -> str:
    """Return the name of this rank's file, like verl's shards, so that each rank uploads and fetches its own."""
    return f"teacher_world_size_{distributed.get_world_size()}_rank_{distributed.get_rank()}.pt"
