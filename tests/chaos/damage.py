"""Scenarios that damage checkpoints on the disk and in the store; each works on a copy of a run killed at its very end."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.attempt import require
from tests.chaos.context import Case, Context
from tests.chaos.kills import EQUAL
from tests.chaos.scenario import scenario

from opd.runs.manifest import COMPLETE_FILE, step_folder
from opd.store.local import LocalStore

MODEL = "actor/model_world_size_1_rank_0.pt"
OPTIMIZER = "actor/optim_world_size_1_rank_0.pt"


@scenario(
    done="the newest model file is cut short, on the disk and in the store",
    promised=f"said by name, passed over for the step before; {EQUAL}",
)
def truncated_file(context: Context) -> str:
    case = context.copy_of_unfinished("run")
    newest = case.newest_complete()
    assert newest is not None
    for folder in _copies(case, newest):
        data = (folder / MODEL).read_bytes()
        (folder / MODEL).write_bytes(data[: len(data) // 2])
    attempt = case.finish()
    require(
        f"global_step_{newest} (local): {MODEL} has" in attempt.output, f"the disk's file is not named; {attempt.log}"
    )
    require(f"global_step_{newest} (store): {MODEL} has" in attempt.output, f"the store's is not named; {attempt.log}")
    case.must_have_resumed(attempt, newest - 1)
    context.must_equal_reference(case)
    return f"step {newest} passed over twice with file and sizes, resumed from {newest - 1}; equal"


@scenario(
    done="one bit of the newest optimizer file is flipped on the disk, and of the step before in the store",
    promised=f"the newest step comes from its whole copy in the store; {EQUAL}",
)
def flipped_bit(context: Context) -> str:
    case = context.copy_of_unfinished("run")
    newest = case.newest_complete()
    assert newest is not None
    on_disk, _ = _copies(case, newest)
    _, in_store = _copies(case, newest - 1)
    for path in (on_disk / OPTIMIZER, in_store / OPTIMIZER):
        _flip_one_bit(path)
    attempt = case.finish()
    said = f"global_step_{newest} (local): {OPTIMIZER} does not have the manifest's sha256"
    require(said in attempt.output, f"the flipped bit is not named; see {attempt.log}")
    require(f"resuming from step {newest} (store)" in attempt.output, f"the store's copy is not taken; {attempt.log}")
    context.must_equal_reference(case)
    return f"sha256 mismatch named, step {newest} fetched from the store; equal"


@scenario(
    done="COMPLETE of the newest step is missing, on the disk and in the store",
    promised=f"the step does not count and is saved again; {EQUAL}",
)
def complete_missing(context: Context) -> str:
    case = context.copy_of_unfinished("run")
    newest = case.newest_complete()
    assert newest is not None
    for folder in _copies(case, newest):
        (folder / COMPLETE_FILE).unlink()
    attempt = case.finish()
    case.must_have_resumed(attempt, newest - 1)
    require(case.newest_complete() == newest, f"step {newest} was not saved again")
    context.must_equal_reference(case)
    return f"resumed from {newest - 1}, step {newest} saved and sealed again; equal"


def _copies(case: Case, step: int) -> tuple[Path, Path]:
    """The step's folder on the disk and in the store, which is a folder here."""
    places = case.places
    assert isinstance(places.store, LocalStore)
    return places.local.local_path(step_folder(step)), places.store.local_path(step_folder(step))


def _flip_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
