"""The driver's part of a save and a resume: it calls every rank for its files (`opd.update.shards`), then seals, chooses, prunes (`opd.runs`)."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError
from verl.single_controller.base import WorkerGroup

from opd.experiment.sections import Checkpoint
from opd.runs.checkpoints import Fetch
from opd.runs.manifest import DRIVER_RANK, Manifest
from opd.runs.run import Run
from opd.runs.shards import ShardReport, move_in, upload_shards
from opd.store.base import DEFAULT_POLICY, NO_RETRY, TRANSIENT_ERRNOS
from opd.update.shards import Background, delete_steps, fetch_loadable, upload, upload_saved

logger = logging.getLogger(__name__)

FIRST_LOOK_S, LONGEST_LOOK_S = 0.02, 1.0
"""Seconds between two looks whether all ranks are done: each is twice the one before."""
LEAVE_S = 20.0
"""Seconds that a run that has failed waits for its save; less than `opd.cluster.lost` gives it to close."""


def on_ranks(
    group: WorkerGroup,
    function: Callable[..., Any] | None = None,
    *,
    answered: Callable[[], None] = lambda: None,
    **arguments: Any,
) -> list[Any]:
    """Return what a function of each rank returns, on threads next to training; without one wait for the last save's writes.

    Each time that all ranks have answered, `answered` is called.
    """
    if function is not None:
        group.start_call(function=function, arguments=arguments)
    look_s = FIRST_LOOK_S
    while not all(group.has_call_ended()):
        answered()
        time.sleep(look_s)
        look_s = min(2 * look_s, LONGEST_LOOK_S)
    return list(group.call_result())


def resume(run: Run, group: WorkerGroup, load: Callable[[Path], None]) -> int:
    """Load the newest complete checkpoint that can be loaded, print the choice, and return its step, or 0 at the run's beginning.

    Each worker brings its own files to its disk first. A checkpoint that cannot be loaded is verified and loaded once more
    before an older one is tried: the store may have a sound copy. Without an older one the error is raised: the models are
    half loaded.
    """
    first_failure: Exception | None = None
    failed_step = -1
    while True:
        decision = run.checkpoints.choose(_everywhere(run, group, fetch_loadable))
        print(decision.describe(), flush=True)
        if decision.step is None or decision.manifest is None:
            if first_failure is not None:
                raise first_failure
            return 0
        if first_failure is None:
            upload_missing(run, group)
        folder = run.checkpoints.folder(decision.step)
        try:
            load(folder)
            return decision.step
        except RayActorError:
            raise  # a worker has died: the checkpoint may be sound
        except Exception as error:  # torch and verl raise many types for files that do not fit
            if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
                raise  # the disk fails now: the files were read and hashed a moment ago
            first_failure = first_failure or error
            if decision.step != failed_step:
                failed_step = decision.step
                logger.warning("%s cannot be loaded; its files are verified once more", folder, exc_info=error)
                continue
            lines = str(error).strip().splitlines() or [""]  # a worker's error ends with its traceback's last line
            cause = f"{type(error).__name__}: {lines[-1].strip()[:200]}"
            run.checkpoints.pass_over(decision.step, f"it cannot be loaded: {cause}")


def upload_missing(run: Run, group: WorkerGroup) -> None:
    """Bring checkpoints that are complete on the disks only to the store."""
    if uploaded := run.checkpoints.upload_missing(_everywhere(run, group, upload_saved)):
        print(f"uploaded checkpoints that the store lacked: steps {', '.join(map(str, uploaded))}", flush=True)


def seal(
    run: Run, group: WorkerGroup, step: int, keep: Checkpoint, answered: Callable[[], None] = lambda: None
) -> None:
    """Collect the acknowledgements of all ranks for a saved step, write manifest and COMPLETE, and prune every disk."""
    # Ahead of the look for another owner, which moves files in at once then: writing may take minutes.
    on_ranks(group, answered=answered)
    run.checkpoints.check_owner()  # who slept through a take-over must not write over what its successor has sealed
    staged, folder = run.checkpoints.staged(step), run.checkpoints.folder(step)
    remote = run.checkpoints.remote
    store_url = None if remote is None else remote.url
    move_in(staged, folder, rank=DRIVER_RANK)
    files = {"step": step, "staged": str(staged), "step_dir": str(folder), "store_url": store_url}
    reports: list[ShardReport] = on_ranks(group, upload, answered=answered, **files)
    # The ranks have waited for an unreachable store: once is enough.
    policy = NO_RETRY if any(report.upload_error for report in reports) else DEFAULT_POLICY
    reports.append(upload_shards(rank=DRIVER_RANK, step=step, step_dir=folder, store_url=store_url, policy=policy))
    run.checkpoints.finalise(step, reports)
    if deleted := run.checkpoints.prune(keep_last=keep.keep_last, keep_every=keep.keep_every):
        on_ranks(group, delete_steps, run_dir=str(run.local.root), steps=deleted)
        logger.info("retention: removed checkpoints of steps %s", deleted)


class Sealing:
    """The one save that may be sealed while training continues."""

    def __init__(self) -> None:
        self._job: Background | None = None
        self._step: int | None = None
        self.num_answers = 0
        """Times that all ranks answered during a save: a sign that nothing hangs."""

    def begin(self, step: int, seal: Callable[[], None]) -> None:
        """Call `seal` on a thread; the save before must have ended."""
        assert self._job is None, f"step {self._step} is on its way"
        self._step, self._job = step, Background(seal, name=f"opd-seal-{step}")

    def answered(self) -> None:
        """Count an answer of all ranks."""
        self.num_answers += 1

    @property
    def is_running(self) -> bool:
        """Return True from `begin` until `wait` has returned or raised how the save ended."""
        return self._job is not None

    def wait(self, within_s: float | None = None) -> int | None:
        """Wait for the running save; return its step, or None without one or while it runs, or raise why it failed."""
        if self._job is None or not self._job.ended.wait(within_s):
            return None
        job, self._job = self._job, None
        job.result()
        return self._step

    def leave(self, patience_s: float = LEAVE_S) -> None:
        """Give the running save some time, after an error of the run."""
        why = f"its save did not end within {patience_s:g} s"
        try:
            self.wait(patience_s)
        except Exception as error:  # noqa: BLE001 - the run's own error is on its way
            why = str(error)
        else:
            if not self.is_running:
                return
        logger.warning("global_step_%d is not sealed: %s", self._step, why)


def _everywhere(run: Run, group: WorkerGroup, function: Callable[..., list[str]]) -> Fetch:
    """Return a `Fetch` by which all ranks and the driver call a function of their own files."""

    def call(manifest: Manifest, store_url: str | None) -> list[str]:
        folder = str(run.checkpoints.folder(manifest.step))
        files: dict[str, Any] = {"step_dir": folder, "manifest": manifest, "store_url": store_url}
        found = [*on_ranks(group, function, **files), function(DRIVER_RANK, **files)]
        return [problem for problems in found for problem in problems]

    return call
