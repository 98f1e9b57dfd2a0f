"""Streaming of growing local files into the object store, which cannot append.

A file is mirrored as the objects `name`, `name.000001`, `name.000002`, ...: consecutive byte ranges of at most PART_BYTES,
cut at line ends. Only the last part is rewritten, so a tick costs at most one part and one request.
"""

import logging
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from opd.errors import StoreUnavailable
from opd.store.base import NO_RETRY, Store, patiently

logger = logging.getLogger(__name__)

# Rewritten at most every FLUSH_INTERVAL_S: 0.4 MiB/s at worst.
PART_BYTES = 4 * 2**20
FLUSH_INTERVAL_S = 10.0


def part_key(key: str, part: int) -> str:
    return key if part == 0 else f"{key}.{part:06d}"


def part_keys(store: Store, key: str) -> list[str]:
    """Return the stored parts of a streamed file in order."""
    folder, _, name = key.rpartition("/")
    pattern = re.compile(re.escape(name) + r"(\.\d{6})?")
    found = sorted(child for child in store.children(folder) if pattern.fullmatch(child))
    return [f"{folder}/{child}" if folder else child for child in found]


def read_streamed(store: Store, key: str) -> bytes:
    """Return the whole streamed file; empty if there is none."""
    return b"".join(store.get(part) for part in part_keys(store, key))


@dataclass(kw_only=True)
class FileMirror:
    """Copies new bytes of `path` to `key` of `store`; one thread at a time."""

    path: Path
    store: Store
    key: str
    part_bytes: int = PART_BYTES
    part: int = 0
    part_start: int = 0
    synced_bytes: int = 0
    # Bytes of the current part without an answer. This upload may take effect at any later time, so the part gets these
    # bytes and no others.
    _unsure_bytes: int = 0

    @classmethod
    def resume(cls, *, path: Path, store: Store, key: str) -> "FileMirror":
        """Make a mirror that continues after another process's stored parts."""
        parts = part_keys(store, key)
        for part in parts[-1:]:
            store.keep(part)  # the other process may have been killed before its sync
        *full, last = [info.size for info in map(store.info, parts) if info is not None] or [0]
        start = sum(full)
        return cls(path=path, store=store, key=key, part=len(full), part_start=start, synced_bytes=start + last)

    def flush(self) -> None:
        """Sync with the patience of the store; raises as `sync`."""
        patiently(self.store.policy, self.sync)

    def sync(self) -> None:
        """Upload until the store holds the file as of the call, each part by one request: a retry would hide a lost answer."""
        try:
            size = os.path.getsize(self.path) if self.path.exists() else 0
            while self.synced_bytes < size:
                self._sync_part(size)
        except OSError as error:  # ESTALE of a network file system
            raise StoreUnavailable(f"cannot read {self.path}: {error}") from error

    def _sync_part(self, size: int) -> None:
        with open(self.path, "rb") as file:
            file.seek(self.part_start)
            data = file.read(min(size - self.part_start, self.part_bytes + 1))
        is_full = len(data) > self.part_bytes
        if is_full:
            line_end = data.rfind(b"\n", 0, self.part_bytes) + 1
            data = data[: line_end or self.part_bytes]
        if self._unsure_bytes:
            data, is_full = data[: self._unsure_bytes], True
        self._unsure_bytes = len(data)
        self.store.with_policy(NO_RETRY).put(part_key(self.key, self.part), data)
        self._unsure_bytes = 0
        self.synced_bytes = self.part_start + len(data)
        if is_full:
            self.part_start, self.part = self.synced_bytes, self.part + 1


class Streamer:
    """One thread that syncs mirrors every FLUSH_INTERVAL_S, and logs when the store becomes unreachable and reachable."""

    def __init__(self) -> None:
        self._mirrors: list[FileMirror] = []
        self._is_away = False
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, *, path: Path, store: Store, key: str) -> None:
        """Keep a file in the store from now on, once it exists; the next tick is the retry."""
        with self._lock:
            self._mirrors.append(FileMirror(path=path, store=store, key=key))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="opd-run-stream", daemon=True)
        self._thread.start()

    def tick(self) -> bool:
        """Sync every mirror once; return False if the store did not take all of it."""
        with self._lock:
            failure: Exception | None = None
            for mirror in self._mirrors:  # each one: an unreadable file must not keep the others
                try:
                    mirror.sync()
                except Exception as error:  # noqa: BLE001 - this thread carries metrics and log: it must not end
                    failure = failure or error
            if self._is_away != (failure is not None):
                self._is_away = failure is not None
                state = f"unreachable, files wait on the disk: {failure}" if failure else "back, it has all files"
                logger.warning("the object store is %s", state)
            return failure is None

    def flush(self) -> None:
        """Return when the store holds the files as of the call; raise StoreError after the store's patience."""
        with self._lock:
            for mirror in self._mirrors:
                mirror.flush()

    def close(self) -> bool:
        """Stop the thread and sync once more; return False if something is left on disk only."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return self.tick()

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_INTERVAL_S):
            self.tick()
