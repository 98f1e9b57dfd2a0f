"""A run directory as one listing shows it, without reading any object."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from opd.runs.attempts import ATTEMPTS_FOLDER, HEARTBEAT_FILE, OWNER_FILE, attempt_of, attempt_prefix
from opd.runs.identity import RUN_FILE
from opd.runs.manifest import CHECKPOINTS_FOLDER, COMPLETE_FILE, step_folder, step_of
from opd.runs.stream import part_key
from opd.runs.summary import SUMMARY_FILE
from opd.store.base import ObjectInfo, Store


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """One step's folder: number of files, bytes, and whether it is sealed."""

    step: int
    num_files: int
    num_bytes: int
    is_complete: bool


class Listing:
    """The objects of one run by key."""

    def __init__(self, store: Store):
        self.store = store
        self.objects: dict[str, ObjectInfo] = {info.key: info for info in store.list("")}

    def __contains__(self, key: str) -> bool:
        return key in self.objects

    @property
    def is_run(self) -> bool:
        return RUN_FILE in self.objects

    @property
    def tops(self) -> frozenset[str]:
        """Names at the top of the run directory."""
        return frozenset(key.partition("/")[0] for key in self.objects)

    def attempts(self) -> list[int]:
        """Return the numbers of the attempts that were claimed, ascending."""
        return [number for number in self.folders() if f"{attempt_prefix(number)}/{OWNER_FILE}" in self]

    def folders(self) -> list[int]:
        """Return the numbers of all attempt folders, ascending: metrics count without a readable claim, too."""
        names = {key.split("/")[1] for key in self.objects if key.startswith(f"{ATTEMPTS_FOLDER}/")}
        return sorted(number for name in names if (number := attempt_of(name)) is not None)

    def parts(self, attempt: int, name: str) -> list[str]:
        """Return the stored parts of one attempt's streamed file, in order."""
        first = f"{attempt_prefix(attempt)}/{name}"
        parts: list[str] = []
        while (key := part_key(first, len(parts))) in self:
            parts.append(key)
        return parts

    def checkpoints(self) -> list[CheckpointInfo]:
        """Return every step with a folder, ascending."""
        found: dict[int, list[ObjectInfo]] = {}
        for key, info in self.objects.items():
            if key.startswith(f"{CHECKPOINTS_FOLDER}/") and (step := step_of(key.split("/")[1])) is not None:
                found.setdefault(step, []).append(info)
        return [
            CheckpointInfo(
                step=step,
                num_files=len(files),
                num_bytes=sum(info.size for info in files),
                is_complete=f"{step_folder(step)}/{COMPLETE_FILE}" in self,
            )
            for step, files in sorted(found.items())
        ]

    def fingerprint(self) -> str:
        """Return a hash that changes with every object but heartbeats and the summary.

        Streamed files only grow and records are written once, so key, size and modification time show every change.
        """
        marks = sorted(
            (info.key, info.size, info.modified_s)
            for info in self.objects.values()
            if not info.key.endswith(f"/{HEARTBEAT_FILE}") and info.key != SUMMARY_FILE
        )
        return hashlib.sha256(json.dumps(marks).encode()).hexdigest()
