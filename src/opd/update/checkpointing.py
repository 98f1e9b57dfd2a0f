"""Checkpoints of a running trainer: every rank answers for its own files on its own disk, the driver seals, chooses, prunes.

Ranks and driver may share a disk (one machine, a claim that all pods mount) or have one each (pods with an emptyDir): each
process verifies, downloads, uploads and deletes only what it wrote itself, so that both are the same case.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ray.exceptions import RayActorError
from verl.single_controller.base import WorkerGroup
from verl.single_controller.base.decorator import Dispatch, register

from opd.compat.host_copies import HostCopies
from opd.compat.plain_loads import find_unloadable, plain_loads
from opd.errors import CheckpointError, StoreError
from opd.experiment.sections import Checkpoint
from opd.runs.manifest import DRIVER_RANK, Manifest, step_folder
from opd.runs.resume import Fetch
from opd.runs.run import Run
from opd.runs.shards import ShardReport, fetch_shards, move_in, sweep_older, upload_shards
from opd.store.base import DEFAULT_POLICY, NO_RETRY
from opd.store.local import TRANSIENT_ERRNOS
from opd.store.transfer import find_problems
from opd.update.background import Job

logger = logging.getLogger(__name__)

# Between two looks whether all ranks are done, seconds: the first, and the longest, of which each is twice the one before.
FIRST_LOOK_S, LONGEST_LOOK_S = 0.02, 1.0
# For how long a run that has failed waits for the save that is on its way; less than `opd.cluster.watch` gives it to close.
LEAVE_S = 20.0


class ShardUploads:
    """Mixin of workers, before verl's: what this rank does for the checkpoints, on the disk that it sees."""

    rank: int
    _copies: HostCopies | None = None
    _copies_next: bool = False
    _writing: Job[None] | None = None
    _job: Job[Any] | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """verl's, but nothing is unpickled, and a rank that fails leaves no other waiting for it."""
        with plain_loads():
            super().load_checkpoint(local_path, hdfs_path, del_local_after_load)  # type: ignore[misc]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, global_step: int = 0, max_ckpt_to_keep: int | None = None
    ) -> None:
        """verl's, on a disk without what the killed saves of earlier attempts have left there.

        After `copy_next_save` it has written next to nothing when it returns: `finish_writing` waits for the rest.
        """
        sweep_older(Path(local_path).parents[1])
        if not self._copies_next:
            self.write_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
            return
        self._copies_next = False
        self._copies = self._copies or HostCopies()
        with self._copies.taken() as writes:
            self.write_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        self._writing = Job(lambda: _make_all(writes), name=f"opd-write-{global_step}")

    def write_checkpoint(
        self, local_path: str, hdfs_path: str | None, global_step: int, max_ckpt_to_keep: int | None
    ) -> None:
        """What a save is made of; verl's own, to which workers add."""
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)  # type: ignore[misc]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def copy_next_save(self) -> None:
        """Have the next `save_checkpoint` copy to host memory, and write on a thread."""
        self._copies_next = True

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_call(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Call one of this worker's methods on a thread, so that it goes on training; one at a time."""
        self._job = Job(lambda: getattr(self, method)(**arguments), name=f"opd-{method}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def has_call_ended(self) -> bool:
        """Whether that has ended."""
        assert self._job is not None
        return self._job.has_ended()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def call_result(self) -> Any:
        """What it returned; raises what it raised."""
        job, self._job = self._job, None
        assert job is not None
        return job.result()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def finish_writing(self) -> None:
        """Returns when what was saved is in the staging folder; raises why it could not be written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def upload_shards(self, step: int, staged: str, step_dir: str, store_url: str | None) -> ShardReport:
        """Move what this rank saved to where it is sealed, hash it and upload it."""
        move_in(Path(staged), Path(step_dir), rank=self.rank)
        return upload_shards(rank=self.rank, step=step, step_dir=step_dir, store_url=store_url)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fetch_shards(self, step_dir: str, manifest: Manifest, store_url: str | None) -> list[str]:
        """`fetch_loadable` of this rank's files."""
        return fetch_loadable(self.rank, step_dir=step_dir, manifest=manifest, store_url=store_url)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def upload_saved_shards(self, step_dir: str, manifest: Manifest, store_url: str) -> list[str]:
        """Upload what this rank saved at an earlier time; why that cannot be done."""
        return upload_saved(self.rank, step_dir=step_dir, manifest=manifest, store_url=store_url)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def delete_shards(self, run_dir: str, steps: list[int]) -> None:
        """Delete the folders of steps that retention let go."""
        for step in steps:
            remove_folder(Path(run_dir) / step_folder(step))


def fetch_loadable(rank: int, *, step_dir: str | Path, manifest: Manifest, store_url: str | None) -> list[str]:
    """Verify one rank's files, downloading what is missing or differs; what is wrong with them, or cannot be loaded."""
    problems = fetch_shards(step_dir=step_dir, manifest=manifest, store_url=store_url, ranks=[rank])
    return problems or find_unloadable(Path(step_dir), [entry.path for entry in manifest.files_of([rank])])


def upload_saved(rank: int, *, step_dir: str | Path, manifest: Manifest, store_url: str) -> list[str]:
    """Upload one rank's files of a checkpoint that was sealed before, if they are still what its manifest says.

    Returns:
        One line a file that is not, or why the store did not take them; empty if the store has them now.
    """
    entries = manifest.files_of([rank])
    if problems := find_problems(Path(step_dir), entries):
        return list(problems.values())
    files = [entry.path for entry in entries]
    report = upload_shards(rank=rank, step=manifest.step, step_dir=step_dir, store_url=store_url, files=files)
    return [report.upload_error] if report.upload_error else []


def _make_all(writes: list[Callable[[], None]]) -> None:
    while writes:  # what is written is held no longer
        writes.pop(0)()


def remove_folder(folder: Path) -> None:
    """Delete a folder that other processes on this disk may be deleting too."""

    def unless_gone(
        call: Callable[..., Any], path: str, raised: tuple[type[BaseException], BaseException, TracebackType]
    ) -> None:
        if not isinstance(raised[1], FileNotFoundError):
            raise raised[1]

    shutil.rmtree(folder, onerror=unless_gone)


def resume(run: Run, worker_group: WorkerGroup, load: Callable[[Path], None]) -> int:
    """Load the newest complete checkpoint of the run that can be loaded; say what it chose and passed over, and return the step.

    The workers must exist: each brings its own files to its disk before anything is loaded. What was saved while the store
    was away is uploaded on the way. A checkpoint that cannot be loaded is verified and loaded once more before it is passed
    over: a file may go bad between its hash and its reading, and the store may have a sound copy.

    Args:
        load: loads what is in the folder of a checkpoint; not called where the run begins, whose step is 0.

    Raises:
        CheckpointError: the checkpoint was saved by another number of ranks.
        StoreError: the store cannot be asked.
        Exception: what the newest checkpoint's loading raised, where there is none before it: the half-loaded models of the
            workers are no start from the beginning.
    """
    first_failure: Exception | None = None
    failed_step, causes = -1, list[str]()
    while True:
        decision = run.checkpoints.choose(fetch=_fetch_everywhere(run, worker_group))
        print(decision.describe(), flush=True)
        if decision.step is None or decision.manifest is None:
            if first_failure is not None:
                raise first_failure
            return 0
        _check_ranks(decision.manifest, worker_group.world_size)
        if first_failure is None:
            upload_missing(run, worker_group)
        try:
            load(Path(str(decision.path)))
            return decision.step
        except RayActorError:
            raise  # a worker has died, which says nothing about the checkpoint
        except Exception as error:  # whatever torch and verl raise over what does not fit
            if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
                raise  # nor does a disk that fails now: the files were read and hashed a moment ago
            first_failure = first_failure or error
            line = (str(error).strip().splitlines() or [""])[
                -1
            ].strip()  # of a worker's error the last of its traceback
            cause = f"{type(error).__name__}: {line[:200]}"
            is_first = decision.step != failed_step
            if is_first:
                failed_step, causes = decision.step, []
            if cause not in causes:
                causes.append(cause)
                # Whole, for what is said of a step that is passed over names only the end of it; not again after a second try.
                logger.warning("%s cannot be loaded", decision.path, exc_info=error)
            if is_first:
                logger.warning("%s: its files are verified once more", decision.path)
                continue
            run.checkpoints.pass_over(decision.step, f"it cannot be loaded: {', then '.join(causes)}")


def upload_missing(run: Run, worker_group: WorkerGroup) -> None:
    """Bring checkpoints that are complete on the disks only to the store."""

    def upload(manifest: Manifest, store_url: str | None) -> list[str]:
        assert store_url is not None  # asked for only where there is a store
        folder = str(run.checkpoints.folder(manifest.step))
        found = worker_group.upload_saved_shards(step_dir=folder, manifest=manifest, store_url=store_url)
        mine = upload_saved(DRIVER_RANK, step_dir=folder, manifest=manifest, store_url=store_url)
        return [problem for problems in [*found, mine] for problem in problems]

    uploaded = run.checkpoints.upload_missing(upload=upload)
    if uploaded:
        print(f"uploaded checkpoints that the store lacked: steps {', '.join(map(str, uploaded))}", flush=True)


def upload_what_is_left(run: Run, worker_group: WorkerGroup) -> None:
    """`upload_missing` at a run's end, while the ranks still live; a store that is away is the launcher's to report."""
    try:
        upload_missing(run, worker_group)
    except StoreError as error:
        logger.warning("checkpoints that the store lacks stay on the disks: %s", error)


def beside_training(
    worker_group: WorkerGroup, method: str, *, answered: Callable[[], None] = lambda: None, **arguments: Any
) -> list[Any]:
    """A method of all ranks, whose own threads go on with what the trainer asks of them meanwhile.

    Args:
        answered: called each time that all ranks have said whether they are done.
    """
    worker_group.start_call(method=method, arguments=arguments)
    look_s = FIRST_LOOK_S
    while not all(worker_group.has_call_ended()):
        answered()
        time.sleep(look_s)
        look_s = min(2 * look_s, LONGEST_LOOK_S)
    return list(worker_group.call_result())


def seal(
    run: Run,
    worker_group: WorkerGroup,
    step: int,
    keep: Checkpoint,
    answered: Callable[[], None] = lambda: None,
) -> None:
    """After verl has saved `step`: acknowledgements of all ranks, manifest, COMPLETE, retention on every disk.

    May be called on a thread while the ranks train; `answered` as of `beside_training`.
    """
    # Ahead of the look for another owner, which moves files in at once then: writing may take minutes.
    beside_training(worker_group, "finish_writing", answered=answered)
    run.checkpoints.check_owner()  # who slept through a take-over must not write over what its successor has sealed
    staged, folder = run.checkpoints.staged(step), run.checkpoints.folder(step)
    store_url = run.handle.store_url
    move_in(staged, folder, rank=DRIVER_RANK)
    arguments = {"step": step, "staged": str(staged), "step_dir": str(folder), "store_url": store_url}
    reports: list[ShardReport] = beside_training(worker_group, "upload_shards", answered=answered, **arguments)
    # The ranks have waited for a store that is away: once is enough.
    policy = NO_RETRY if any(report.upload_error for report in reports) else DEFAULT_POLICY
    reports.append(upload_shards(rank=DRIVER_RANK, step=step, step_dir=folder, store_url=store_url, policy=policy))
    run.checkpoints.finalise(step, reports)
    deleted = run.checkpoints.prune(keep_last=keep.keep_last, keep_every=keep.keep_every)
    if deleted:
        beside_training(worker_group, "delete_shards", run_dir=run.handle.local_dir, steps=deleted)
        logger.info("retention: removed checkpoints of steps %s", deleted)


class Sealing:
    """The one save that may be on its way to its seal beside the training."""

    def __init__(self) -> None:
        self._job: Job[float] | None = None
        self._step: int | None = None
        self.seconds = 0.0
        """How long the last one took that came to its end."""
        self.num_answers = 0
        """How often all ranks have answered while one was on its way: it may take long, but nothing hangs."""

    def begin(self, step: int, seal: Callable[[], None]) -> None:
        """Have `seal` called on a thread; the one before must have come to its end."""
        assert self._job is None, f"step {self._step} is on its way"

        def timed() -> float:
            start = time.monotonic()
            seal()
            return time.monotonic() - start

        self._step, self._job = step, Job(timed, name=f"opd-seal-{step}")

    def answered(self) -> None:
        """The ranks have."""
        self.num_answers += 1

    def is_over(self, within_s: float) -> bool:
        """Whether nothing is on its way, now or before so long."""
        return self._job is None or self._job.wait(within_s)

    def look(self) -> int | None:
        """The step that has been sealed since the last look, None if there is none; raises why one could not be."""
        if self._job is None or not self._job.has_ended():
            return None
        job, self._job = self._job, None
        self.seconds = job.result()
        return self._step

    def wait(self) -> int | None:
        """As `look`, once nothing is on its way any more."""
        if self._job is not None:
            self._job.wait()
        return self.look()

    def leave(self, patience_s: float = LEAVE_S) -> None:
        """For who ends by an error of its own: what is on its way may yet be sealed, if that does not take too long."""
        if self._job is None:
            return
        step = self._step
        if not self._job.wait(patience_s):
            logger.warning("global_step_%d is not sealed: its save did not end within %g s", step, patience_s)
            return
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - the run's own error is on its way
            logger.warning("global_step_%d is not sealed: %s", step, error)


def _fetch_everywhere(run: Run, worker_group: WorkerGroup) -> Fetch:
    def fetch(manifest: Manifest, store_url: str | None) -> list[str]:
        folder = str(run.checkpoints.folder(manifest.step))
        found = worker_group.fetch_shards(step_dir=folder, manifest=manifest, store_url=store_url)
        mine = fetch_loadable(DRIVER_RANK, step_dir=folder, manifest=manifest, store_url=store_url)
        return [problem for problems in [*found, mine] for problem in problems]

    return fetch


def _check_ranks(manifest: Manifest, num_ranks: int) -> None:
    saved_by = len({entry.rank for entry in manifest.files} - {DRIVER_RANK})
    if saved_by != num_ranks:
        raise CheckpointError(
            f"global_step_{manifest.step} was saved by {saved_by} ranks, and this run has {num_ranks}: FSDP's shards fit "
            f"the number they were saved by; set trainer.nnodes x trainer.gpus_per_node to {saved_by}, or convert the "
            "checkpoint and start another run from that model"
        )
