"""Describes a run directory from a single listing, without reading any object."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from opd.runs.attempts import ATTEMPTS_FOLDER, ENDED_FILE, HEARTBEAT_FILE, OWNER_FILE, attempt_of, attempt_prefix
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

    def attempts(self) -> list[int]:
        """Numbers of the attempts that were claimed, ascending."""
        return [number for number in self.folders() if f"{attempt_prefix(number)}/{OWNER_FILE}" in self]

    def folders(self) -> list[int]:
        """Numbers of all attempt folders, ascending: metrics count even where the claim is unreadable."""
        names = {key.split("/")[1] for key in self.objects if key.startswith(f"{ATTEMPTS_FOLDER}/")}
        return sorted(number for name in names if (number := attempt_of(name)) is not None)

    def parts(self, attempt: int, name: str) -> list[str]:
        """The stored parts of one attempt's streamed file, in order."""
        first = f"{attempt_prefix(attempt)}/{name}"
        parts: list[str] = []
        while (key := part_key(first, len(parts))) in self:
            parts.append(key)
        return parts

    def last_sign_s(self, attempt: int) -> float:
        """The attempt's newest beat (or its claim), Unix seconds of the store's clock; 0 where there is none."""
        keys = (f"{attempt_prefix(attempt)}/{name}" for name in (OWNER_FILE, HEARTBEAT_FILE, ENDED_FILE))
        return max((self.objects[key].modified_s for key in keys if key in self), default=0.0)

    def checkpoints(self) -> list[CheckpointInfo]:
        """Every step with a folder, ascending."""
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
        """Changes whenever anything but a heartbeat and the summary changed: each object's key, size and modification time.

        Streamed files only grow and records are written once, so size and time tell every change.
        """
        marks = sorted(
            (info.key, info.size, info.modified_s)
            for info in self.objects.values()
            if not info.key.endswith(f"/{HEARTBEAT_FILE}") and info.key != SUMMARY_FILE
        )
        return hashlib.sha256(json.dumps(marks).encode()).hexdigest()
