"""One attempt at a run, from claiming it to its end: what a launcher opens around its trainer."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from opd.errors import Overtaken, RunError, StoreError, Unforeseen
from opd.runs.attempts import (
    BEATS_PER_LEASE,
    DEFAULT_LEASE_TTL_S,
    ENDED_FILE,
    Claim,
    attempt_numbers,
    attempt_prefix,
    claim_attempt,
)
from opd.runs.disk import as_disk_full
from opd.runs.driver_log import LOG_FILE, LogTee
from opd.runs.identity import settle_identity
from opd.runs.metrics import METRICS_FILE, read_metrics
from opd.runs.progress import PROGRESS
from opd.runs.reporter import ProgressConfigMap, Reporter
from opd.runs.result import refuse_if_over, write_fatal, write_result
from opd.runs.resume import newest_complete_step
from opd.runs.stacks import FILE as STACKS_FILE
from opd.runs.stream import FLUSH_INTERVAL_S, upload_leftovers
from opd.runs.summary import FINISHED, INTERVAL_S, SummaryKeeper
from opd.runs.writer import RunHandle, RunWriter
from opd.store.base import DEFAULT_POLICY, NO_RETRY, RetryPolicy, Store
from opd.store.local import LocalStore
from opd.store.opening import open_store

logger = logging.getLogger(__name__)
# 128 + SIGTERM, as a shell reports it.
EXIT_TERMINATED = 143


class Run(RunWriter):
    """The attempt as its owner sees it: `RunWriter` and the lease, the driver's log and the end. Use as a context manager.

    Leaving the block with an exception marks the attempt as failed, and says DiskFull where that was the cause; `finish`
    marks the run as done. SIGTERM unwinds the
    main thread by SystemExit(143), so that everything is flushed on the way out.
    """

    def __init__(
        self,
        handle: RunHandle,
        claim: Claim,
        *,
        spec: Mapping[str, Any],
        tee: bool,
        tells_cluster: bool,
        within: Run | None = None,
    ):
        super().__init__(handle, renew=lambda: self.impatient.beat(progress_record()), end=_ask_to_end)
        self.within = within
        self.impatient = claim.with_policy(NO_RETRY)
        self.claim = claim
        self.reporter = Reporter(attempt=handle.attempt)
        """Who is told how this attempt stands while it lives."""
        # On a thread of its own: a store that does not answer keeps the news from nobody else.
        self._summariser = Reporter(attempt=handle.attempt, interval_s=INTERVAL_S)
        impatient = [store.with_policy(NO_RETRY) for store in self.stores]
        self.summary = SummaryKeeper(
            impatient[0],
            attempt=handle.attempt,
            spec=spec,
            history=lambda: read_metrics(impatient).rows,
            newest_checkpoint=lambda: newest_complete_step(impatient[0]),
            check=self.impatient.check,
        )
        self.tee = LogTee(handle.attempt_dir / LOG_FILE) if tee else None
        self._tells_cluster = tells_cluster
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
        tells_cluster: bool = True,
        within: Run | None = None,
        policy: RetryPolicy = DEFAULT_POLICY,
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
            tells_cluster: keep the run's ConfigMap, where its chart has made one; a pipeline leaves it to its stages.
            within: the pipeline's attempt, of which this run is a stage: its pods are this run's.

        Raises:
            SpecChanged, RunFinished, RunFatal, RunIsLive, CreateOnlyUnsupported, StoreError: see opd.errors.
        """
        local, remote = _places(local_root, store_url, run_id, policy)
        stores: list[Store] = [local] if remote is None else [remote, local]
        settle_identity(stores, run_id=run_id, spec_hash=spec_hash, identity=identity or spec, spec=spec)
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
            token=claim.owner.token,
            spec_hash=spec_hash,
            check_interval_s=lease_ttl_s / BEATS_PER_LEASE,
            flush_interval_s=flush_interval_s,
            policy=policy,
        )
        return cls(handle, claim, spec=spec, tee=tee, tells_cluster=tells_cluster, within=within)

    def start(self) -> None:
        if self.tee is not None:
            self.tee.start()
            self._mirror(LOG_FILE)
        super().start()
        self._summariser.add(self.summary)
        if self._tells_cluster and (config_map := ProgressConfigMap.of(os.environ)) is not None:
            self.reporter.add(config_map)
        if threading.current_thread() is threading.main_thread():
            self._previous_sigterm = signal.signal(signal.SIGTERM, _raise_system_exit)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        super().log(step, metrics)
        self.reporter.see(step, metrics)
        self.summary.see(step, metrics)

    @property
    def asked_in(self) -> Path:
        """The folder in which the pods of this process ask for a save (`opd.pods.stop`): they know the outermost run's."""
        return Path(self.handle.local_dir) if self.within is None else self.within.asked_in

    def hand_over(self) -> None:
        """Let the next attempt start at once, without waiting for this one's lease: its pods are about to go, and it is saved.

        So too of the run that this one is a stage of. Should it go on after all, it still owns the run until somebody
        overtakes it.
        """
        for run in self._with_outer():
            try:
                run.claim.end("stopped", "saved for its pods, which are being deleted")
            except StoreError as error:
                logger.warning("the next attempt will wait for this one's lease: %s", error)

    def take_back(self) -> None:
        """The pods have stayed: the attempt goes on, and the next one has to wait for it again."""
        for run in self._with_outer():
            try:
                for store in run.stores:
                    store.delete(f"{run.claim.prefix}/{ENDED_FILE}")
            except StoreError as error:
                logger.warning("attempt %d still looks ended in the store: %s", run.handle.attempt, error)

    def _with_outer(self) -> Iterator[Run]:
        yield self
        if self.within is not None:
            yield from self.within._with_outer()

    def close(self) -> None:
        if self.tee is not None:
            self.tee.stop()
        super().close()
        if self._previous_sigterm is not None:
            signal.signal(signal.SIGTERM, self._previous_sigterm)
            self._previous_sigterm = None

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Ends the run well: all streams uploaded first, then result.json. What is printed later is not logged.

        A `RunWriter` in another process must be closed before.

        Returns:
            The record as written.

        Raises:
            Overtaken: the run is another's by now; no result is written.
            StoreError: the store did not come back; everything is on the local disk.
        """
        with self.storing_the_end():
            self.check_owner()
            self.close()
            if self.remote is not None:
                self._streamer.flush(self.handle.policy)  # these mirrors know what was sent without an answer
                _upload_streams(self.local, self.remote)
                self.checkpoints.upload_missing()
            # Before the attempt's end: a launcher that waits for that would find no result yet, and start the run again.
            record = write_result(
                self.stores[0],
                result,
                run_id=self.handle.run_id,
                attempt=self.handle.attempt,
                spec_hash=self.handle.spec_hash,
            )
        self._has_ended = True  # whatever interrupts what follows: the run is done
        try:
            self._end(FINISHED)
        except StoreError as error:
            logger.warning("the end of attempt %d is not marked: %s", self.handle.attempt, error)
        self._summarise(FINISHED, result=result)
        return record

    def fail(self, error: BaseException | str, *, fatal: bool = False) -> None:
        """Marks the attempt as failed; with `fatal` also the run, so that no later attempt tries again."""
        why = error.__cause__ if isinstance(error, SystemExit | Unforeseen) and error.__cause__ is not None else error
        text = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        if fatal:
            self.check_owner()
            write_fatal(self.stores[0], text, run_id=self.handle.run_id, attempt=self.handle.attempt)
        outcome = "fatal" if fatal else _outcome(error)
        self._end(outcome, text)
        if outcome != "overtaken":
            self._summarise(outcome, text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ending: RunError | None = as_disk_full(error, self.local.root) if isinstance(error, Exception) else None
        if error is None or isinstance(error, SystemExit):  # asked to end, maybe by the watch over the lease
            ending = self._watch.lost
        self.close()
        if self._has_ended:
            return
        try:
            if error is None and ending is None:
                self._end("stopped")
                self._summarise("stopped")
            else:
                self.fail(ending or error or "")
        except StoreError as away:
            logger.warning("the end of attempt %d is not marked, its lease runs out: %s", self.handle.attempt, away)
        if ending is not None:
            raise ending from error

    def _end(self, outcome: str, detail: str = "") -> None:
        try:
            self.reporter.close(outcome)  # first: a store that is away is waited for
            self.claim.end(outcome, detail)
        finally:
            self._summariser.stop()
        self._has_ended = True

    def _summarise(self, outcome: str, detail: str = "", *, result: Mapping[str, Any] | None = None) -> None:
        """Has the summary tell of the end, unless the run is another's by now; without it readers read more."""
        try:
            self.summary.end(outcome, detail, result=result)
        except RunError as error:
            logger.warning("%s does not tell of the end: %s", self.summary, error)


def progress_record() -> dict[str, Any]:
    """What a heartbeat says of the driver's progress, in Unix seconds; empty before there is any."""
    standing = PROGRESS.read()
    if standing is None:
        return {}
    return {
        **({"stage": standing.stage} if standing.stage else {}),
        "phase": standing.phase,
        "step": standing.step,
        "progress_at_s": time.time() - standing.silent_s(),
        "limit_s": standing.limit_s,
    }


def _places(
    local_root: str | Path, store_url: str | None, run_id: str, policy: RetryPolicy
) -> tuple[LocalStore, Store | None]:
    """The local run directory and, if it is another place, the run in the object store."""
    local = LocalStore(Path(local_root) / run_id, policy=policy)
    if store_url is None:
        return local, None
    remote = open_store(store_url, policy=policy).child(run_id)
    is_same = isinstance(remote, LocalStore) and os.path.realpath(remote.root) == os.path.realpath(local.root)
    return local, None if is_same else remote


def _upload_streams(local: LocalStore, remote: Store) -> None:
    """Brings the store up to date with every attempt's files on this disk, those of killed processes included."""
    prefixes = [attempt_prefix(attempt) for attempt in attempt_numbers(local)]
    num_bytes = upload_leftovers(local, remote, names=(METRICS_FILE, LOG_FILE, STACKS_FILE), prefixes=prefixes)
    if num_bytes:
        logger.info("uploaded %d bytes of metrics and logs that were on this disk only", num_bytes)


def _outcome(error: BaseException | str) -> str:
    if isinstance(error, Overtaken):
        return "overtaken"
    return "stopped" if isinstance(error, SystemExit | KeyboardInterrupt) else "failed"


def _ask_to_end() -> None:
    """Have the main thread do what it does at SIGTERM: finish its step, save, end."""
    os.kill(os.getpid(), signal.SIGTERM)


def _raise_system_exit(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)
