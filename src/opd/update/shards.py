"""Checkpoint files of one rank, on the disk that it sees: saved, moved, hashed, uploaded, fetched and deleted by the rank itself.

Ranks and driver may share a disk or have one each; every process touches only what it wrote, so both are the same case.
"""

import contextlib
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from verl.single_controller.base.decorator import Dispatch, register

from opd.compat.host_copies import HostCopies
from opd.compat.plain_loads import find_unloadable, plain_loads
from opd.runs import shards
from opd.runs.manifest import Manifest, step_folder
from opd.store.transfer import find_problems


class Background:
    """A call on a daemon thread; `ended` is set after it, and `result` has how it ended."""

    _answer: Any = None
    _error: BaseException | None = None

    def __init__(self, call: Callable[[], Any], *, name: str):
        # Not the thread's own end: Python 3.11 takes a thread whose `join` was interrupted for ended.
        self.ended = threading.Event()
        threading.Thread(target=self._run, args=(call,), name=name, daemon=True).start()

    def result(self) -> Any:
        """Wait for the call; return its answer or raise its error."""
        self.ended.wait()
        if self._error is not None:
            raise self._error
        return self._answer

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._answer = call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error
        finally:
            self.ended.set()


class ShardUploads:
    """Mixin of workers, before verl's, for the checkpoint files of this rank."""

    rank: int
    copies_saves: bool = False
    """A save copies to host memory, and is written on a thread."""
    _copies: HostCopies | None = None
    _job: Background | None = None
    """The call on a thread: the writes of a save, or another."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, local_path: str) -> None:
        """Load as verl does, but unpickle nothing; a rank that fails leaves no other waiting."""
        with plain_loads():
            super().load_checkpoint(local_path)  # type: ignore[misc]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, local_path: str, *, global_step: int) -> None:
        """Save as verl does, and delete what killed saves have left.

        With `copies_saves` it returns before the files are written: `call_result` waits for them.
        """
        shards.sweep_older(Path(local_path).parents[1])
        if not self.copies_saves:
            self.write_checkpoint(local_path, global_step)
            return
        self._copies = self._copies or HostCopies()
        with self._copies.taken() as writes:
            self.write_checkpoint(local_path, global_step)
        self._job = Background(lambda: _write_all(writes), name=f"opd-write-{global_step}")

    def write_checkpoint(self, local_path: str, global_step: int) -> None:
        """Write verl's files, to which workers add."""
        super().save_checkpoint(local_path, None, global_step, None)  # type: ignore[misc]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Call a function of this rank on a thread; one at a time."""
        self._job = Background(lambda: function(self.rank, **arguments), name=f"opd-{function.__name__}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def has_call_ended(self) -> bool:
        """Return True if no thread runs."""
        return self._job is None or self._job.ended.is_set()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def call_result(self) -> Any:
        """Return the result of the call, or of the writes; raise its error."""
        job, self._job = self._job, None
        return None if job is None else job.result()


def upload(rank: int, *, step: int, staged: str, step_dir: str, store_url: str | None) -> shards.ShardReport:
    """Move what a rank saved to where it is sealed, hash it and upload it."""
    shards.move_in(Path(staged), Path(step_dir), rank=rank)
    return shards.upload_shards(rank=rank, step=step, step_dir=step_dir, store_url=store_url)


def fetch_loadable(rank: int, *, step_dir: str | Path, manifest: Manifest, store_url: str | None) -> list[str]:
    """Verify one rank's files and download what is missing or differs; return what is wrong or cannot be loaded."""
    problems = shards.fetch_shards(step_dir=step_dir, manifest=manifest, store_url=store_url, ranks=[rank])
    return problems or find_unloadable(Path(step_dir), [entry.path for entry in manifest.files_of([rank])])


def upload_saved(rank: int, *, step_dir: str | Path, manifest: Manifest, store_url: str) -> list[str]:
    """Upload one rank's files of a sealed checkpoint; return a line a file that differs from the manifest, or the store's error."""
    entries = manifest.files_of([rank])
    if problems := find_problems(Path(step_dir), entries):
        return list(problems.values())
    files = [entry.path for entry in entries]
    report = shards.upload_shards(rank=rank, step=manifest.step, step_dir=step_dir, store_url=store_url, files=files)
    return [report.upload_error] if report.upload_error else []


def delete_steps(rank: int, *, run_dir: str, steps: list[int]) -> None:
    """Delete folders of steps, which other processes may be deleting too."""
    for folder in (Path(run_dir) / step_folder(step) for step in steps):
        while folder.exists():
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)


def _write_all(writes: list[Callable[[], None]]) -> None:
    while writes:  # each lets go of its copy
        writes.pop(0)()
