"""Checkpoint files of one rank, on the disk that it sees: saved, moved, hashed, uploaded, fetched and deleted by the rank itself.

Ranks and driver may share a disk or have one each; every process touches only what it wrote, so both are the same case.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from verl.single_controller.base.decorator import Dispatch, register

from opd.compat.host_copies import HostCopies
from opd.compat.plain_loads import find_unloadable, plain_loads
from opd.runs.manifest import Manifest, step_folder
from opd.runs.shards import ShardReport, fetch_shards, move_in, sweep_older, upload_shards
from opd.store.transfer import find_problems
from opd.update.background import Job


class ShardUploads:
    """Mixin of workers, before verl's, for the checkpoint files of this rank."""

    rank: int
    _copies: HostCopies | None = None
    _copies_next: bool = False
    _writing: Job[None] | None = None
    _job: Job[Any] | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Load as verl does, but unpickle nothing; a rank that fails leaves no other waiting."""
        with plain_loads():
            super().load_checkpoint(local_path, hdfs_path, del_local_after_load)  # type: ignore[misc]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, global_step: int = 0, max_ckpt_to_keep: int | None = None
    ) -> None:
        """Save as verl does, and delete what killed saves have left.

        After `copy_next_save` it returns before the files are written: `finish_writing` waits for them.
        """
        sweep_older(Path(local_path).parents[1])
        if not self._copies_next:
            self.write_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
            return
        self._copies_next = False
        self._copies = self._copies or HostCopies()
        with self._copies.taken() as writes:
            self.write_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        self._writing = Job(lambda: _write_all(writes), name=f"opd-write-{global_step}")

    def write_checkpoint(
        self, local_path: str, hdfs_path: str | None, global_step: int, max_ckpt_to_keep: int | None
    ) -> None:
        """Write verl's files, to which workers add."""
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)  # type: ignore[misc]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def copy_next_save(self) -> None:
        """Let the next `save_checkpoint` copy to host memory, and write on a thread."""
        self._copies_next = True

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_call(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Call one of this worker's methods on a thread; one at a time."""
        self._job = Job(lambda: getattr(self, method)(**arguments), name=f"opd-{method}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def has_call_ended(self) -> bool:
        """Return True if that call has ended."""
        assert self._job is not None
        return self._job.has_ended()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def call_result(self) -> Any:
        """Return its result; raise its error."""
        job, self._job = self._job, None
        assert job is not None
        return job.result()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def finish_writing(self) -> None:
        """Return when the files are in the staging folder; raise why they are not."""
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
        """Call `fetch_loadable` for this rank's files."""
        return fetch_loadable(self.rank, step_dir=step_dir, manifest=manifest, store_url=store_url)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def upload_saved_shards(self, step_dir: str, manifest: Manifest, store_url: str) -> list[str]:
        """Call `upload_saved` for this rank's files."""
        return upload_saved(self.rank, step_dir=step_dir, manifest=manifest, store_url=store_url)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def delete_shards(self, run_dir: str, steps: list[int]) -> None:
        """Delete folders of steps."""
        for step in steps:
            remove_folder(Path(run_dir) / step_folder(step))


def fetch_loadable(rank: int, *, step_dir: str | Path, manifest: Manifest, store_url: str | None) -> list[str]:
    """Verify one rank's files and download what is missing or differs; return what is wrong or cannot be loaded."""
    problems = fetch_shards(step_dir=step_dir, manifest=manifest, store_url=store_url, ranks=[rank])
    return problems or find_unloadable(Path(step_dir), [entry.path for entry in manifest.files_of([rank])])


def upload_saved(rank: int, *, step_dir: str | Path, manifest: Manifest, store_url: str) -> list[str]:
    """Upload one rank's files of a sealed checkpoint; return a line a file that differs from the manifest, or the store's error."""
    entries = manifest.files_of([rank])
    if problems := find_problems(Path(step_dir), entries):
        return list(problems.values())
    files = [entry.path for entry in entries]
    report = upload_shards(rank=rank, step=manifest.step, step_dir=step_dir, store_url=store_url, files=files)
    return [report.upload_error] if report.upload_error else []


def _write_all(writes: list[Callable[[], None]]) -> None:
    while writes:  # each lets go of its copy
        writes.pop(0)()


def remove_folder(folder: Path) -> None:
    """Delete a folder that other processes may be deleting too."""

    def unless_gone(
        call: Callable[..., Any], path: str, raised: tuple[type[BaseException], BaseException, TracebackType]
    ) -> None:
        if not isinstance(raised[1], FileNotFoundError):
            raise raised[1]

    shutil.rmtree(folder, onerror=unless_gone)
