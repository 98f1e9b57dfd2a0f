"""One attempt at a run: the claim before Ray starts, the records while the trainer works, and the end."""

import contextlib
import functools
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from opd.errors import Overtaken, RunError, RunFinished, StoreError, Unfit, Unforeseen
from opd.experiment import BaseSpec, SpecError, dump_spec, identity, spec_hash
from opd.runs.attempts import Claim, attempt_numbers, attempt_prefix, claim_attempt
from opd.runs.checkpoints import Checkpoints
from opd.runs.driver_log import LOG_FILE, LogTee
from opd.runs.identity import settle_identity
from opd.runs.lease import Watch
from opd.runs.metrics import METRICS_FILE, MetricsWriter, Row, read_metrics
from opd.runs.progress import PROGRESS
from opd.runs.result import FATAL_FILE, INSTALL_VARIABLE, RESULT_FILE, as_disk_full, refuse_if_over
from opd.runs.stacks import FILE as STACKS_FILE
from opd.runs.stream import FileMirror, Streamer
from opd.runs.summary import FINISHED, SummaryKeeper
from opd.store.base import DEFAULT_POLICY, NO_RETRY, RetryPolicy, Store
from opd.store.local import LocalStore
from opd.store.remote import open_store

logger = logging.getLogger(__name__)


class Run:
    """One attempt: metrics, checkpoints, the lease, the driver's log and the end. Use as a context manager.

    An exception that leaves the block marks the attempt as failed; `finish` marks the run as done.

    Attributes:
        local: the run directory on this machine. remote: in the object store; None where the local one is the store.
        stores: both, the one that decides ownership first.
        attempt: its number. attempt_dir: its local folder. within: the attempt of the pipeline with this stage.
    """

    def __init__(
        self, claim: Claim, *, run_id: str, spec: Mapping[str, Any], tee: bool = True, within: "Run | None" = None
    ):
        *remotes, local = self.stores = claim.stores
        assert isinstance(local, LocalStore)
        self.local, self.remote = local, remotes[0] if remotes else None
        self.claim, self.within, self._run_id = claim, within, run_id
        self.attempt, self.attempt_dir = claim.owner.attempt, local.local_path(claim.prefix)
        self.metrics = MetricsWriter(self.attempt_dir / METRICS_FILE)
        self._streamer = Streamer()
        self.checkpoints = Checkpoints(
            local=local, remote=self.remote, attempt=self.attempt, spec_hash=claim.owner.spec_hash,
            before_store_seal=self._streamer.flush, before_local_seal=self.metrics.flush,
        )  # fmt: skip
        # The next beat is the retry, and the end of the run must not wait for retries.
        self._impatient = replace(claim, stores=tuple(store.with_policy(NO_RETRY) for store in claim.stores))
        self.summary = SummaryKeeper(self._impatient, spec)
        # A lost lease asks the main thread to end as SIGTERM does: it finishes its step, saves, and ends.
        end = functools.partial(os.kill, os.getpid(), signal.SIGTERM)
        self._watch = Watch(beat=self._renew, term_s=claim.owner.lease_ttl_s, end=end)
        self.tee = LogTee(self.attempt_dir / LOG_FILE) if tee else None
        self._kept: set[str] = set()
        self._has_ended = False

    @classmethod
    def open(
        cls, *, run_id: str, local_root: str | Path, spec: Mapping[str, Any], spec_hash: str,
        identity: Mapping[str, Any] | None = None, store_url: str | None = None, policy: RetryPolicy = DEFAULT_POLICY,
        **options: Any,
    ) -> "Run":  # fmt: skip
        """Claim the next attempt of `run_id`; raise SpecChanged, RunFinished, RunFatal, RunIsLive or StoreError.

        Args:
            identity: the fields that `spec_hash` covers, for the diff of a rejected start; `spec` by default.
            store_url: prefix in the object store. None, or `local_root` itself, makes the local run directory the store.
            options: `tee` keeps driver.log, `within` is the attempt of the pipeline with this stage.
        """
        local = LocalStore(Path(local_root) / run_id, policy=policy)
        stores: list[Store] = [local]
        if store_url is not None:
            remote = open_store(store_url, policy=policy).child(run_id)
            if (folder := remote.local_path("")) is None or folder.resolve() != local.root.resolve():
                stores = [remote, local]
        settle = functools.partial(
            settle_identity, stores, run_id=run_id, spec_hash=spec_hash, identity=identity or spec, spec=spec
        )
        settle(is_claimed=False)
        refuse_if_over(stores[0])
        claim = claim_attempt(stores, spec_hash=spec_hash)
        try:
            refuse_if_over(stores[0])  # the previous owner may have finished the run meanwhile, or trained
            settle(is_claimed=True)
        except RunError:
            claim.end("not needed")
            raise
        run = cls(claim, run_id=run_id, spec=spec, **options)
        run._upload_streams()
        return run

    # ---- the trainer's side ----

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one row of metrics; raise Overtaken or LeaseLost by the last beat."""
        self._watch.check()
        self.metrics.log(step, metrics)
        self.summary.see(step, metrics)

    def history(self) -> list[Row]:
        """Return the metrics of all attempts merged, for the result of a finished run."""
        with self.storing_the_end():
            return read_metrics(self.stores)

    @contextlib.contextmanager
    def storing_the_end(self) -> Iterator[None]:
        """Add the place of the finished work to the error of a store that fails within the block."""
        try:
            yield
        except StoreError as error:
            raise type(error)(
                f"the run is done but its result could not be stored: {error}. Metrics, log and checkpoints are complete in "
                f"{self.local.root}. Starting the run again on this machine uploads them and writes the result"
            ) from error

    def keep(self, files: Mapping[str, bytes]) -> None:
        """Write small files for people, by key: to the disk at once, to the store as soon as it takes them."""
        for key, content in files.items():
            self.local.put(key, content)
        if self.remote is None:
            return
        self._kept.update(files)
        remote = self.remote.with_policy(NO_RETRY)
        for key in sorted(self._kept):
            try:
                remote.put_file(key, self.local.local_path(key))
            except StoreError as error:
                logger.warning("%d files for people wait for the store: %s", len(self._kept), error)
                return
            self._kept.discard(key)

    @property
    def asked_in(self) -> Path:
        """The folder in which the pods of this process ask for a save (`opd.pods.stop`): the outermost run's."""
        return self.local.root if self.within is None else self.within.asked_in

    def hand_over(self, *, back: bool = False) -> None:
        """Mark this attempt and its outer run as ended, since the end of the head's pod kills it; `back`: remove the marks."""
        try:
            if back:
                self.claim.take_back_end()
            else:
                self.claim.end("stopped", "saved for its pods, which are being deleted")
        except StoreError as error:
            logger.warning("attempt %d may look %s: %s", self.attempt, "ended" if back else "alive", error)
        if self.within is not None:
            self.within.hand_over(back=back)

    # ---- start and end ----

    def __enter__(self) -> Self:
        if self.tee is not None:
            self.tee.start()
        self._watch.start()
        if self.remote is not None:
            for name in (METRICS_FILE, LOG_FILE):
                key = f"{self.claim.prefix}/{name}"
                self._streamer.add(path=self.local.local_path(key), store=self.remote, key=key)
            self._streamer.start()
        return self

    def close(self) -> None:
        """Stop the threads and flush; with a warning for files that the store does not take now."""
        if self.tee is not None:
            self.tee.stop()
        self._watch.stop()
        self.metrics.close()
        if not self._streamer.close():
            logger.warning("not uploaded yet: %s; the next start on this machine uploads it", self.attempt_dir)

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Upload all streams, then write result.json, and return it; later output is not logged. Raises Overtaken, StoreError."""
        with self.storing_the_end():
            self.claim.check()
            self.close()
            self._streamer.flush()  # these mirrors know of uploads without an answer
            self._upload_streams()
            # Before the attempt's end: a launcher that waits for it would find no result yet, and start the run again.
            spec_hash = self.claim.owner.spec_hash
            record = self._signed({**result, "spec_hash": spec_hash, "finished_at_s": time.time()})
            self.stores[0].put_json(RESULT_FILE, record)
        self._has_ended = True  # an interruption after this line changes nothing: the run is done
        try:
            self._end(FINISHED, result=result)
        except StoreError as error:
            logger.warning("the end of attempt %d is not marked: %s", self.attempt, error)
        return record

    def fail(self, error: BaseException | str, *, fatal: bool = False) -> None:
        """Mark the attempt as failed; with `fatal` also the run, so that no later attempt tries again."""
        why = error.__cause__ if isinstance(error, Unforeseen) else error
        text = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        if fatal:
            self.claim.check()
            record = {"reason": text, "time_s": time.time(), "install": os.environ.get(INSTALL_VARIABLE, "")}
            self.stores[0].put_json(FATAL_FILE, self._signed(record))
        outcome = "stopped" if isinstance(error, KeyboardInterrupt) else "fatal" if fatal else "failed"
        self._end("overtaken" if isinstance(error, Overtaken) else outcome, text)

    def _signed(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return {**record, "run_id": self._run_id, "attempt": self.attempt}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        ending: RunError | None = self._watch.lost  # the run was asked to end, maybe by the watch over the lease
        if isinstance(error, Exception):
            ending = as_disk_full(error, self.local.root)
        self.close()
        if self._has_ended:
            return
        why = ending or error
        try:
            self._end("stopped") if why is None else self.fail(why)
        except StoreError as away:
            logger.warning("the end of attempt %d is not marked, its lease runs out: %s", self.attempt, away)
        if ending is not None:
            raise ending from error

    def _end(self, outcome: str, detail: str = "", *, result: Mapping[str, Any] | None = None) -> None:
        """Record the attempt's end, then the summary's; without a summary readers read more."""
        self.claim.end(outcome, detail)
        self._has_ended = True
        if outcome == "overtaken":
            return
        try:
            self.summary.write(outcome, detail, result=result)
        except RunError as error:
            logger.warning("the summary of the run lacks its end: %s", error)

    def _renew(self) -> None:
        """Renew the lease, then the summary; without a summary readers read more, and the run loses nothing."""
        self.summary.tell()
        standing = PROGRESS.read()
        self._impatient.beat({} if standing is None else standing.as_beat())
        try:
            self.summary.write()
        except StoreError as error:
            logger.info("%s", error)

    def _upload_streams(self) -> None:
        """Upload the missing bytes of every attempt's files on this disk, also of killed processes."""
        if self.remote is None:
            return
        for attempt in attempt_numbers(self.local):
            for name in (METRICS_FILE, LOG_FILE, STACKS_FILE):
                key = f"{attempt_prefix(attempt)}/{name}"
                if (path := self.local.local_path(key)).is_file():
                    FileMirror.resume(path=path, store=self.remote, key=key).flush()


def open_run(spec: BaseSpec, *, within: Run | None = None) -> Run:
    """Claim the next attempt at the spec's run, as a stage of `within` if given; raises as `Run.open`."""
    return Run.open(
        run_id=spec.name, local_root=spec.output.root, spec=dump_spec(spec), identity=identity(spec),
        spec_hash=spec_hash(spec), store_url=spec.store.url, within=within,
    )  # fmt: skip


@contextlib.contextmanager
def attempting(claimed: Run) -> Iterator[Run]:
    """Enter the attempt; print the traceback of an unforeseen error into its log, and raise Unforeseen from it.

    The caller prints errors of a run, of its spec and of its inputs in a line.
    """
    with claimed:
        try:
            yield claimed
        except (RunError, SpecError, Unfit):
            raise
        except Exception as error:
            if as_disk_full(error, claimed.local.root) is not None:
                raise
            traceback.print_exc()  # the log closes with the attempt
            raise Unforeseen("the attempt has ended by the error above") from error


def refuse(spec: BaseSpec, error: SpecError) -> int:
    """End a start whose data or models cannot be used: print why, and return the exit code.

    An installation of our charts stores the reason, so that no retry of its RayJob asks for GPUs again. A finished run
    needs its inputs no more.
    """
    try:
        if os.environ.get(INSTALL_VARIABLE):
            with open_run(spec) as claimed:
                print(error, file=sys.stderr)
                claimed.fail(error, fatal=True)
            return error.exit_code
        refuse_if_over(open_store(spec.store.url).child(spec.name))
    except RunError as other:
        print(f"opd.launch: {other}", file=sys.stderr)
        if isinstance(other, RunFinished):
            return other.exit_code
    print(error, file=sys.stderr)
    return error.exit_code
