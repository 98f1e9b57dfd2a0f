"""Where the converted model goes: a folder or a store URL that shows the whole model or nothing of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opd.convert.errors import BadRequest
from opd.store.base import Store
from opd.store.durable import fsync_folder
from opd.store.remote import open_store

# Written by every conversion; only a folder that holds it is ever replaced.
RECORD_FILE = "conversion.json"
# Without it transformers loads nothing: removed first and uploaded last where there is no rename.
KEY_FILE = "config.json"


@dataclass(frozen=True, kw_only=True)
class Target:
    """The place of the converted model, as a store; a local one is replaced by a rename."""

    store: Store

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def folder(self) -> Path | None:
        """The local folder, None for a remote store."""
        return self.store.local_path("")

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty local folder to write into; published when the block ends well, removed in any case.

        What killed conversions to the same target left behind goes first: they no longer hold their locks.
        """
        parent = self.folder.parent if self.folder else None
        if parent:
            parent.mkdir(parents=True, exist_ok=True)
        # Hidden, and not named like what a live run sweeps from its checkpoints folder.
        prefix = f".{self.url.rpartition('/')[2]}.part-"
        if parent:
            _sweep(parent, prefix)
        staged = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with _locked(staged):
            try:
                yield staged
                if self.folder:
                    _replace(staged, self.folder)
                else:
                    _upload(staged, self.store)
            finally:
                shutil.rmtree(staged, ignore_errors=True)


def choose_target(target: str | None, checkpoint: str) -> Target:
    """The target that was asked for; by default `global_step_N-huggingface` beside the checkpoint, outside of it.

    Args:
        checkpoint: path or URL of the step's folder.

    Raises:
        BadRequest: it lies inside the checkpoint, or holds something that no conversion wrote.
    """
    chosen = Target(store=open_store(target or f"{checkpoint}-huggingface"))
    if f"{_real(chosen.url)}/".startswith(f"{_real(checkpoint)}/"):
        raise BadRequest(
            f"target {chosen.url} lies inside the checkpoint, where a resume or an evaluation moves files away that the "
            "manifest does not list, and retention deletes them; choose a folder outside of it"
        )
    is_file = chosen.folder is not None and chosen.folder.is_file()
    names = [] if is_file else chosen.store.children("")
    if is_file or (names and RECORD_FILE not in names):
        raise BadRequest(
            f"target {chosen.url} exists and is no earlier conversion (it has no {RECORD_FILE}): remove it or choose another"
        )
    return chosen


def _real(url: str) -> str:
    return url if "://" in url else os.path.realpath(url)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Holds the folder's lock, which ends with the process; yields False where another has it or the disk knows none."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = True
        except OSError:
            is_held = False
        yield is_held
    finally:
        os.close(descriptor)


def _sweep(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError), _locked(folder) as is_left_over:  # a living one may publish it now
            if is_left_over:
                shutil.rmtree(folder)


def _replace(staged: Path, folder: Path) -> None:
    """`staged` under the name of `folder`; an earlier conversion there is moved away just before."""
    umask = _umask()
    staged.chmod(0o777 & ~umask)  # mkdtemp and safetensors write for their owner alone
    for path in (path for path in staged.rglob("*") if path.is_file()):
        path.chmod(0o666 & ~umask)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    old = folder.with_name(f".{folder.name}.old-{uuid.uuid4().hex[:8]}")
    if folder.exists():
        folder.rename(old)
    staged.rename(folder)
    fsync_folder(folder.parent)
    for path in folder.parent.glob(f".{folder.name}.old-*"):
        shutil.rmtree(path, ignore_errors=True)  # another conversion to the same target may be at it, too


def _upload(staged: Path, store: Store) -> None:
    """Every file of `staged`; the config that makes the folder a model goes last, and an older one is taken away first."""
    files = {path.relative_to(staged).as_posix(): path for path in staged.rglob("*") if path.is_file()}
    store.delete(KEY_FILE)
    # The record goes first: it lets the next try replace what a killed one left.
    for key in sorted(files, key=lambda key: (key == KEY_FILE) - (key == RECORD_FILE)):
        store.put_file(key, files[key])
    for info in store.list(""):
        if info.key not in files:
            store.delete(info.key)


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
