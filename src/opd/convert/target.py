"""The place of the converted model: a folder or a store URL that shows the whole model or nothing of it."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from opd.convert.errors import BadRequest
from opd.experiment.algorithm import converted
from opd.store.base import Store
from opd.store.durable import fsync_file, fsync_folder
from opd.store.remote import open_store

# Written by every conversion; only a folder that holds it is ever replaced.
RECORD_FILE = "conversion.json"
# Without it transformers loads nothing: removed first and uploaded last where there is no rename.
KEY_FILE = "config.json"


def choose_target(target: str | None, checkpoint: str) -> Store:
    """Return the place that was asked for; by default `global_step_N-huggingface` next to the checkpoint.

    Args:
        checkpoint: path or URL of the step's folder.

    Raises:
        BadRequest: the target is inside the checkpoint, or holds something that no conversion wrote.
    """
    chosen = open_store(target or converted(checkpoint))
    if f"{_real(chosen.url)}/".startswith(f"{_real(checkpoint)}/"):
        raise BadRequest(
            f"target {chosen.url} is inside the checkpoint. A resume or an evaluation moves files there that the manifest does "
            "not list, and retention deletes them. Choose a folder outside of it"
        )
    folder = chosen.local_path("")
    is_file = folder is not None and folder.is_file()
    names = [] if is_file else chosen.children("")
    if is_file or (names and RECORD_FILE not in names):
        raise BadRequest(
            f"target {chosen.url} exists and is no earlier conversion (it has no {RECORD_FILE}): remove it or choose another"
        )
    return chosen


def _real(url: str) -> str:
    return url if "://" in url else os.path.realpath(url)


@contextlib.contextmanager
def staging(target: Store) -> Iterator[Path]:
    """Yield an empty local folder to write into; publish it when the block ends well, remove it in any case."""
    folder = target.local_path("")
    # Hidden, so that a live run does not sweep it from its checkpoints folder.
    staged = folder.with_name(f".{folder.name}.part") if folder else Path(tempfile.mkdtemp(prefix="opd-convert-"))
    shutil.rmtree(staged, ignore_errors=True)  # a killed conversion to the same target left it
    staged.mkdir(parents=True)
    try:
        yield staged
        if folder:
            _replace(staged, folder)
        else:
            _upload(staged, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _replace(staged: Path, folder: Path) -> None:
    """Rename `staged` to `folder`; an earlier conversion there is moved out of the way just before."""
    for path in (path for path in staged.rglob("*") if path.is_file()):
        path.chmod(0o644)  # safetensors writes for its owner alone
        fsync_file(path)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    staged.rename(folder)
    fsync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _upload(staged: Path, store: Store) -> None:
    """Upload every file of `staged`; the config that makes the folder a model goes last, and an older config is deleted first."""
    files = {path.relative_to(staged).as_posix(): path for path in staged.rglob("*") if path.is_file()}
    store.delete(KEY_FILE)
    # The record goes first: it lets the next try replace the files that a killed conversion left.
    for key in sorted(files, key=lambda key: (key == KEY_FILE) - (key == RECORD_FILE)):
        store.put_file(key, files[key])
    for info in store.list(""):
        if info.key not in files:
            store.delete(info.key)
