"""Streaming of growing local files into the object store: bounded delay, bounded cost, spooled on disk while it is away.

Object stores cannot append. A file is mirrored as the objects `name`, `name.000001`, `name.000002`, ...: consecutive byte
ranges of at most PART_BYTES, cut at line ends. Only the last one is rewritten as the file grows, and not beyond an upload
whose answer never came; the earlier ones never change, so a tick costs at most one part and one request, and a reader may
cache all parts but the last. Their concatenation is the file. The local file is the spool: nothing is kept in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opd.errors import StoreUnavailable
from opd.store.base import NO_RETRY, RetryPolicy, Store
from opd.store.local import LocalStore

logger = logging.getLogger(__name__)

# Rewritten at most every FLUSH_INTERVAL_S: 0.4 MiB/s at worst, and one request a tick.
PART_BYTES = 4 * 2**20
FLUSH_INTERVAL_S = 10.0


def part_key(key: str, part: int) -> str:
    return key if part == 0 else f"{key}.{part:06d}"


def part_keys(store: Store, key: str) -> list[str]:
    """The stored parts of a streamed file in order; empty if there is none."""
    folder, _, name = key.rpartition("/")
    pattern = re.compile(re.escape(name) + r"(\.\d{6})?")
    found = sorted(child for child in store.children(folder) if pattern.fullmatch(child))
    return [f"{folder}/{child}" if folder else child for child in found]


def read_streamed(store: Store, key: str) -> bytes:
    """The whole streamed file; empty if there is none."""
    return b"".join(store.get(part) for part in part_keys(store, key))


@dataclass(kw_only=True)
class FileMirror:
    """Copies what `path` has grown by to `key` of `store`; one thread at a time."""

    path: Path
    store: Store
    key: str
    part_bytes: int = PART_BYTES
    part: int = 0
    part_start: int = 0
    synced_bytes: int = 0
    # Of the current part, what was sent without an answer. It may take effect at any later time, so the part gets these bytes
    # and no others: more would be written over.
    _unsure_bytes: int = 0

    @classmethod
    def resume(cls, *, path: Path, store: Store, key: str, part_bytes: int = PART_BYTES) -> FileMirror:
        """A mirror that goes on where another process stopped, as told by the parts that are stored."""
        parts = part_keys(store, key)
        if parts:
            store.keep(
                parts[-1]
            )  # it may have been killed before the store had that one for good; it is not sent again
        sizes = [info.size for info in map(store.info, parts) if info is not None]
        return cls(
            path=path,
            store=store,
            key=key,
            part_bytes=part_bytes,
            part=max(len(sizes) - 1, 0),
            part_start=sum(sizes[:-1]),
            synced_bytes=sum(sizes),
        )

    @property
    def pending_bytes(self) -> int:
        return max(self._size() - self.synced_bytes, 0)

    def sync(self, store: Store | None = None) -> None:
        """Uploads until the store holds what the file held at the call.

        Args:
            store: the same store with another patience.

        Raises:
            StoreError: the store is away, or the file cannot be read; what is stored stays valid and the next call goes on
                from it.
        """
        size = self._size()
        while self.synced_bytes < size:
            data = self._read(min(size - self.part_start, self.part_bytes + 1))
            is_full = len(data) > self.part_bytes
            if is_full:
                line_end = data.rfind(b"\n", 0, self.part_bytes) + 1
                data = data[: line_end or self.part_bytes]
            if self._unsure_bytes:
                data, is_full = data[: self._unsure_bytes], True
            # The retries of a patient store hide answers that never came: what it has written is not grown either.
            is_full = is_full or store is not None
            self._unsure_bytes = len(data)
            (store or self.store).put(part_key(self.key, self.part), data)
            self._unsure_bytes = 0
            self.synced_bytes = self.part_start + len(data)
            if is_full:
                self.part_start, self.part = self.synced_bytes, self.part + 1

    def _size(self) -> int:
        try:
            return os.path.getsize(self.path)
        except FileNotFoundError:
            return 0
        except OSError as error:  # ESTALE of a network file system: the next look may find the file again
            raise StoreUnavailable(f"cannot look at {self.path}: {error}") from error

    def _read(self, num_bytes: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.part_start)
                return file.read(num_bytes)
        except OSError as error:
            raise StoreUnavailable(f"cannot read {self.path}: {error}") from error


@dataclass(kw_only=True)
class Streamer:
    """One thread that syncs mirrors every `interval_s` and says when the store goes away and comes back."""

    interval_s: float = FLUSH_INTERVAL_S
    mirrors: list[FileMirror] = field(default_factory=list)
    num_failed_ticks: int = 0
    _is_away: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def add(self, mirror: FileMirror) -> None:
        mirror.store = mirror.store.with_policy(NO_RETRY)  # the next tick is the retry
        with self._lock:
            self.mirrors.append(mirror)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="opd-run-stream", daemon=True)
        self._thread.start()

    def tick(self) -> bool:
        """One sync of every mirror; False if the store did not take all of it."""
        with self._lock:
            failure: Exception | None = None
            for mirror in self.mirrors:  # each one: a file that cannot be read must not keep the others
                try:
                    mirror.sync()
                except Exception as error:  # noqa: BLE001 - this thread carries what the run has to say: it must not end
                    failure = failure or error
            if failure is not None:
                self.num_failed_ticks += 1
                if not self._is_away:
                    logger.warning(
                        "object store away, spooling on disk (%d bytes so far): %s", self._pending_bytes(), failure
                    )
                self._is_away = True
                return False
            if self._is_away:
                logger.warning(
                    "object store is back, spooled files are uploaded (%d ticks failed)", self.num_failed_ticks
                )
            self._is_away = False
            return True

    def _pending_bytes(self) -> int:
        total = 0
        for mirror in self.mirrors:
            with contextlib.suppress(StoreUnavailable):  # a file that cannot be looked at now
                total += mirror.pending_bytes
        return total

    def flush(self, policy: RetryPolicy) -> None:
        """Returns when the store holds what the files held at the call.

        Raises:
            StoreError: it did not within the policy's patience.
        """
        with self._lock:
            for mirror in self.mirrors:
                try:
                    mirror.sync()  # one try, so that the mirror knows of an upload without an answer
                except StoreUnavailable:
                    mirror.sync(mirror.store.with_policy(policy))

    def close(self) -> bool:
        """Stops the thread and syncs once more; False if something is left on disk only."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return self.tick()

    def _run(self) -> None:
        while not self._stop.wait(self.interval_s):
            self.tick()


def upload_leftovers(local: LocalStore, remote: Store, *, names: Sequence[str], prefixes: Sequence[str]) -> int:
    """Uploads what killed processes left on this disk only.

    Args:
        names: streamed files, looked for under each of `prefixes` (attempt folders).

    Returns:
        Number of bytes that the store did not have.

    Raises:
        StoreError: the store is away.
    """
    num_bytes = 0
    for key in (f"{prefix}/{name}" for prefix in prefixes for name in names):
        path = local.local_path(key)
        if path.is_file():
            mirror = FileMirror.resume(path=path, store=remote, key=key)
            num_bytes += mirror.pending_bytes
            mirror.sync()
    return num_bytes
