"""Checkpoints of a running trainer: every rank answers for its own files on its own disk, the driver seals, chooses, prunes.

Ranks and driver may share a disk (one machine, a claim that all pods mount) or have one each (pods with an emptyDir): each
process verifies, downloads, uploads and deletes only what it wrote itself, so that both are the same case.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from omegaconf import DictConfig, open_dict
from ray.exceptions import RayActorError
from verl.single_controller.base import WorkerGroup
from verl.single_controller.base.decorator import Dispatch, register

from opd.compat.plain_loads import find_unloadable, plain_loads
from opd.config.running import Checkpoint
from opd.errors import CheckpointError, StoreError
from opd.runs.manifest import DRIVER_RANK, Manifest, step_folder
from opd.runs.resume import Fetch
from opd.runs.run import Run
from opd.runs.shards import ShardReport, fetch_shards, upload_shards
from opd.runs.staging import move_in, sweep_older
from opd.store.base import DEFAULT_POLICY, NO_RETRY
from opd.store.local import TRANSIENT_ERRNOS
from opd.store.transfer import find_problems

logger = logging.getLogger(__name__)


class ShardUploads:
    """Mixin of workers, before verl's: what this rank does for the checkpoints, on the disk that it sees."""

    rank: int

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
        """verl's, on a disk without what the killed saves of earlier attempts have left there."""
        sweep_older(Path(local_path).parents[1])
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)  # type: ignore[misc]

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


def remove_folder(folder: Path) -> None:
    """Delete a folder that other processes on this disk may be deleting too."""

    def unless_gone(
        call: Callable[..., Any], path: str, raised: tuple[type[BaseException], BaseException, TracebackType]
    ) -> None:
        if not isinstance(raised[1], FileNotFoundError):
            raise raised[1]

    shutil.rmtree(folder, onerror=unless_gone)


def resume(config: DictConfig, run: Run, worker_group: WorkerGroup, load: Callable[[], None]) -> None:
    """Load the newest complete checkpoint of the run that can be loaded; says what it chose and what it passed over.

    The workers must exist: each brings its own files to its disk before anything is loaded. What was saved while the store
    was away is uploaded on the way.

    Args:
        load: verl's own loading, of what `config.trainer` names; of nothing where that is left as it is.

    Raises:
        CheckpointError: the checkpoint was saved by another number of ranks.
        StoreError: the store cannot be asked.
        Exception: what the newest checkpoint's loading raised, where there is none before it: the half-loaded models of the
            workers are no start from the beginning.
    """
    first_failure: Exception | None = None
    while True:
        decision = run.checkpoints.choose(fetch=_fetch_everywhere(run, worker_group))
        print(decision.describe(), flush=True)
        if decision.step is None or decision.manifest is None:
            if first_failure is not None:
                raise first_failure
            return load()
        _check_ranks(decision.manifest, worker_group.world_size)
        if first_failure is None:
            upload_missing(run, worker_group)
        with open_dict(config):
            config.trainer.resume_mode = "resume_path"
            config.trainer.resume_from_path = str(decision.path)
        try:
            return load()
        except RayActorError:
            raise  # a worker has died, which says nothing about the checkpoint
        except Exception as error:  # whatever torch and verl raise over what does not fit
            if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
                raise  # nor does a disk that fails now: the files were read and hashed a moment ago
            first_failure = first_failure or error
            cause = (str(error).strip().splitlines() or [""])[-1].strip()
            run.checkpoints.pass_over(decision.step, f"it cannot be loaded: {type(error).__name__}: {cause[:200]}")


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


def seal(run: Run, worker_group: WorkerGroup, step: int, keep: Checkpoint) -> None:
    """After verl has saved `step`: acknowledgements of all ranks, manifest, COMPLETE, retention on every disk."""
    run.checkpoints.check_owner()  # who slept through a take-over must not write over what its successor has sealed
    staged, folder = run.checkpoints.staged(step), run.checkpoints.folder(step)
    store_url = run.handle.store_url
    move_in(staged, folder, rank=DRIVER_RANK)
    reports = list(worker_group.upload_shards(step=step, staged=str(staged), step_dir=str(folder), store_url=store_url))
    # The ranks have waited for a store that is away: once is enough.
    policy = NO_RETRY if any(report.upload_error for report in reports) else DEFAULT_POLICY
    reports.append(upload_shards(rank=DRIVER_RANK, step=step, step_dir=folder, store_url=store_url, policy=policy))
    run.checkpoints.finalise(step, reports)
    deleted = run.checkpoints.prune(keep_last=keep.keep_last, keep_every=keep.keep_every)
    if deleted:
        worker_group.delete_shards(run_dir=run.handle.local_dir, steps=deleted)
        logger.info("retention: removed checkpoints of steps %s", deleted)


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
