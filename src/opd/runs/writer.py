"""What the training process writes to one attempt: metrics and checkpoints, for as long as the attempt owns the run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from opd.errors import StoreError
from opd.runs.attempts import BEATS_PER_LEASE, Watch, attempt_prefix, check_owner
from opd.runs.checkpoints import Checkpoints
from opd.runs.metrics import METRICS_FILE, MetricsWriter, Row, read_metrics
from opd.runs.stream import FileMirror, Streamer
from opd.store.base import NO_RETRY, RetryPolicy, Store
from opd.store.local import LocalStore
from opd.store.opening import open_store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunHandle:
    """What another process (a Ray actor, a rank) needs to write to the same attempt; plain data, so that it travels.

    `local_dir` is the run's folder on the machine of the reader; `store_url` the run's URL in the object store, None
    where the local folder is the store; `token` the claim's own.
    """

    run_id: str
    local_dir: str
    store_url: str | None
    attempt: int
    token: str
    spec_hash: str
    check_interval_s: float
    flush_interval_s: float
    policy: RetryPolicy

    @property
    def attempt_dir(self) -> Path:
        return Path(self.local_dir) / attempt_prefix(self.attempt)


class RunWriter:
    """Metrics and checkpoints of one attempt, for the process that trains. Use as a context manager.

    Only one process may log metrics of an attempt. `metrics` rows reach the store within the flush interval.
    """

    def __init__(
        self, handle: RunHandle, *, renew: Callable[[], None] | None = None, end: Callable[[], None] | None = None
    ):
        self.handle = handle
        self.local = LocalStore(Path(handle.local_dir), policy=handle.policy)
        self.remote = open_store(handle.store_url, policy=handle.policy) if handle.store_url else None
        self.metrics = MetricsWriter(path=handle.attempt_dir / METRICS_FILE)
        self._streamer = Streamer(interval_s=handle.flush_interval_s)
        self.checkpoints = Checkpoints(
            local=self.local,
            remote=self.remote,
            attempt=handle.attempt,
            token=handle.token,
            spec_hash=handle.spec_hash,
            before_store_seal=lambda: self._streamer.flush(handle.policy),
            before_local_seal=self.metrics.flush,
        )
        # No retries on the watch thread: the next beat is one, and leaving must not wait for them.
        impatient = [store.with_policy(NO_RETRY) for store in self.stores]
        beat = renew or (lambda: check_owner(impatient, handle.attempt, handle.token))
        self._watch = Watch(
            beat=beat, interval_s=handle.check_interval_s, term_s=BEATS_PER_LEASE * handle.check_interval_s, end=end
        )
        self._mirrored: set[str] = set()

    @property
    def stores(self) -> tuple[Store, ...]:
        """The run directory's places, the one that decides ownership first."""
        return (self.local,) if self.remote is None else (self.remote, self.local)

    def check_owner(self) -> None:
        """Raises Overtaken if the run is another's by now (asks the stores)."""
        check_owner(self.stores, self.handle.attempt, self.handle.token)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes one row of metrics.

        Raises:
            Overtaken: the last check of the lease found that the run is another's.
            LeaseLost: the lease is older than its term.
        """
        self._watch.check()
        self._mirror(METRICS_FILE)
        self.metrics.log(step, metrics)

    def history(self) -> list[Row]:
        """The metrics of all attempts merged, for the result of a run whose work is done.

        Raises:
            StoreError: the store is away; the message says where everything is.
        """
        with self.storing_the_end():
            return read_metrics(self.stores).rows

    @contextlib.contextmanager
    def storing_the_end(self) -> Iterator[None]:
        """Around what follows the work: a store that fails now is told together with where the work is."""
        try:
            yield
        except StoreError as error:
            raise type(error)(
                f"the run is done but its result could not be stored: {error}; metrics, log and checkpoints are complete in "
                f"{self.local.root}, starting the run again on this machine uploads them and writes the result"
            ) from error

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
