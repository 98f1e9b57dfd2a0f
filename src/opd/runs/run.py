"""One attempt at a run, from claiming it to its end: what a launcher opens and what its trainer writes through."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from opd.runs.attempts import (
    BEATS_PER_LEASE,
    DEFAULT_LEASE_TTL_S,
    Claim,
    attempt_numbers,
    attempt_prefix,
    check_owner,
    claim_attempt,
)
from opd.runs.checkpoints import Checkpoints
from opd.runs.driver_log import LOG_FILE, LogTee
from opd.runs.errors import Overtaken, RunError, StoreError
from opd.runs.identity import settle_identity
from opd.runs.lease import Watch
from opd.runs.manifest import CHECKPOINTS_FOLDER
from opd.runs.metrics import METRICS_FILE, MetricsWriter
from opd.runs.result import refuse_if_over, write_fatal, write_result
from opd.runs.store import NO_RETRY, RetryPolicy, Store, open_store
from opd.runs.store_local import LocalStore
from opd.runs.stream import FLUSH_INTERVAL_S, FileMirror, Streamer, upload_leftovers

logger = logging.getLogger(__name__)
# 128 + SIGTERM, as a shell reports it.
EXIT_TERMINATED = 143


@dataclass(frozen=True, kw_only=True)
class RunHandle:
    """What another process (a Ray actor, a rank) needs to write to the same attempt; plain data, so that it travels.

    `local_dir` is the run's folder on the machine of the reader; `store_url` the run's URL in the object store, None
    where the local folder is the store.
    """

    run_id: str
    local_dir: str
    store_url: str | None
    attempt: int
    spec_hash: str
    check_interval_s: float
    flush_interval_s: float
    policy: RetryPolicy

    @property
    def attempt_dir(self) -> Path:
        return Path(self.local_dir) / attempt_prefix(self.attempt)

    @property
    def checkpoints_dir(self) -> Path:
        """verl's `trainer.default_local_dir`."""
        return Path(self.local_dir) / CHECKPOINTS_FOLDER


class RunWriter:
    """Metrics and checkpoints of one attempt, for the process that trains. Use as a context manager.

    Only one process may log metrics of an attempt. `metrics` rows reach the store within the flush interval.
    """

    def __init__(self, handle: RunHandle, *, renew: Callable[[], None] | None = None):
        self.handle = handle
        self.local = LocalStore(Path(handle.local_dir), policy=handle.policy)
        self.remote = open_store(handle.store_url, policy=handle.policy) if handle.store_url else None
        self.metrics = MetricsWriter(path=handle.attempt_dir / METRICS_FILE)
        self.checkpoints = Checkpoints(
            local=self.local,
            remote=self.remote,
            attempt=handle.attempt,
            spec_hash=handle.spec_hash,
            check_owner=self.check_owner,
        )
        self._streamer = Streamer(interval_s=handle.flush_interval_s)
        # No retries on the watch thread: the next beat is one, and leaving must not wait for them.
        impatient = [store.with_policy(NO_RETRY) for store in self.stores]
        beat = renew or (lambda: check_owner(impatient, handle.attempt))
        self._watch = Watch(beat=beat, interval_s=handle.check_interval_s)
        self._mirrored: set[str] = set()

    @property
    def stores(self) -> tuple[Store, ...]:
        """The run directory's places, the one that decides ownership first."""
        return (self.local,) if self.remote is None else (self.remote, self.local)

    def check_owner(self) -> None:
        """Raises Overtaken if a newer attempt owns the run (asks the stores)."""
        check_owner(self.stores, self.handle.attempt)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes one row of metrics.

        Raises:
            Overtaken: the last check of the lease found a newer attempt.
        """
        self._watch.raise_if_overtaken()
        self._mirror(METRICS_FILE)
        self.metrics.log(step, metrics)

    def start(self) -> None:
        self._watch.start()
        if self.remote is not None:
            self._streamer.start()

    def close(self) -> None:
        """Stops the threads and flushes; what the store does not take now stays on the disk and is warned of."""
        self._watch.stop()
        self.metrics.close()
        if not self._streamer.close():
            logger.warning("not uploaded yet: %s; the next start on this machine uploads it", self.handle.attempt_dir)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _mirror(self, name: str) -> None:
        """Has the streamer keep one file of the attempt in the store."""
        if self.remote is not None and name not in self._mirrored:
            self._mirrored.add(name)
            key = f"{attempt_prefix(self.handle.attempt)}/{name}"
            self._streamer.add(FileMirror(path=self.local.local_path(key), store=self.remote, key=key))


class Run(RunWriter):
    """The attempt as its owner sees it: `RunWriter` and the lease, the driver's log and the end. Use as a context manager.

    Leaving the block with an exception marks the attempt as failed; `finish` marks the run as done.
    """

    def __init__(self, handle: RunHandle, claim: Claim, *, tee: bool):
        super().__init__(handle, renew=claim.with_policy(NO_RETRY).beat)
        self.claim = claim
        self.tee = LogTee(handle.attempt_dir / LOG_FILE) if tee else None
        self._has_ended = False
        self._previous_sigterm: Any = None

    @classmethod
    def open(
        cls,
        *,
        run_id: str,
        local_root: str | Path,
        spec: Mapping[str, Any],
        spec_hash: str,
        identity: Mapping[str, Any] | None = None,
        store_url: str | None = None,
        lease_ttl_s: float = DEFAULT_LEASE_TTL_S,
        max_wait_s: float | None = None,
        flush_interval_s: float = FLUSH_INTERVAL_S,
        tee: bool = True,
        policy: RetryPolicy | None = None,
    ) -> Run:
        """Claims the next attempt of `run_id`, or says why there is none.

        Args:
            local_root: folder that holds the run directories of this machine; the run's is `local_root/run_id`.
            spec: the whole experiment, stored as spec.json.
            identity: the fields that `spec_hash` covers, for the diff that a refused start shows; `spec` by default.
            store_url: prefix in the object store; the run lies under `store_url/run_id`. None, or the same folder as
                `local_root`, makes the local run directory the store.
            max_wait_s: how long an owner that still lives is waited for.
            tee: copy stdout and stderr to driver.log while the run is entered.

        Raises:
            SpecChanged, RunFinished, RunFatal, RunIsLive, CreateOnlyUnsupported, StoreError: see opd.runs.errors.
        """
        policy = policy or RetryPolicy()
        local = LocalStore(Path(local_root) / run_id, policy=policy)
        remote = open_store(store_url, policy=policy).child(run_id) if store_url is not None else None
        if isinstance(remote, LocalStore) and os.path.realpath(remote.root) == os.path.realpath(local.root):
            remote = None
        stores: list[Store] = [local] if remote is None else [remote, local]
        for store in stores:
            settle_identity(store, run_id=run_id, spec_hash=spec_hash, identity=identity or spec, spec=spec)
        refuse_if_over(stores[0])
        claim = claim_attempt(stores, spec_hash=spec_hash, lease_ttl_s=lease_ttl_s, max_wait_s=max_wait_s)
        try:
            refuse_if_over(stores[0])  # the owner that was waited for may have brought the run to its end
        except RunError:
            claim.end("not needed")
            raise
        if remote is not None:
            _upload_streams(local, remote)
        handle = RunHandle(
            run_id=run_id,
            local_dir=str(local.root),
            store_url=remote.url if remote is not None else None,
            attempt=claim.attempt,
            spec_hash=spec_hash,
            check_interval_s=lease_ttl_s / BEATS_PER_LEASE,
            flush_interval_s=flush_interval_s,
            policy=policy,
        )
        return cls(handle, claim, tee=tee)

    def start(self) -> None:
        if self.tee is not None:
            self.tee.start()
            self._mirror(LOG_FILE)
        super().start()
        if threading.current_thread() is threading.main_thread():
            self._previous_sigterm = signal.signal(signal.SIGTERM, _raise_system_exit)

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Ends the run well: everything flushed to the store first, result.json last. Print before you call it.

        Returns:
            The record as written.

        Raises:
            Overtaken: a newer attempt owns the run; nothing is written.
            StoreUnavailable: the store did not come back; all files are on the local disk, starting again uploads them.
        """
        self.check_owner()
        self.close()
        if self.remote is not None:
            _upload_streams(self.local, self.remote)
        self._end("finished")
        return write_result(
            self.stores[0],
            result,
            run_id=self.handle.run_id,
            attempt=self.handle.attempt,
            spec_hash=self.handle.spec_hash,
        )

    def fail(self, error: BaseException | str, *, fatal: bool = False) -> None:
        """Marks the attempt as failed; with `fatal` also the run, so that no later attempt tries again."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        if fatal:
            self.check_owner()
            write_fatal(self.stores[0], text, run_id=self.handle.run_id, attempt=self.handle.attempt)
        self._end("fatal" if fatal else "overtaken" if isinstance(error, Overtaken) else "failed", text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if self._has_ended:
            return
        try:
            if error is None:
                self._end("stopped")
            else:
                self.fail(error)
        except StoreError as away:
            logger.warning(
                "cannot mark the end of attempt %d, its lease runs out instead: %s", self.handle.attempt, away
            )

    def close(self) -> None:
        if self.tee is not None:
            self.tee.stop()
        super().close()
        if self._previous_sigterm is not None:
            signal.signal(signal.SIGTERM, self._previous_sigterm)
            self._previous_sigterm = None

    def _end(self, outcome: str, detail: str = "") -> None:
        self._has_ended = True
        self.claim.end(outcome, detail)


def _raise_system_exit(signum: int, frame: FrameType | None) -> None:
    """Unwinds the main thread, so that leaving the `with` block flushes and marks the end."""
    raise SystemExit(EXIT_TERMINATED)


def _upload_streams(local: LocalStore, remote: Store) -> None:
    """Brings the store up to date with every attempt's files on this disk, those of killed processes included."""
    prefixes = [attempt_prefix(attempt) for attempt in attempt_numbers(local)]
    num_bytes = upload_leftovers(local, remote, names=(METRICS_FILE, LOG_FILE), prefixes=prefixes)
    if num_bytes:
        logger.info("uploaded %d bytes of metrics and logs that were on this disk only", num_bytes)
