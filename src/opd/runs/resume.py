"""Choosing the checkpoint to resume from: sealed, whole, and verified before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opd.errors import CheckpointError, CorruptRecord, StoreError
from opd.runs.manifest import (
    CHECKPOINTS_FOLDER,
    COMPLETE_FILE,
    DRIVER_RANK,
    MANIFEST_FILE,
    Manifest,
    open_sealed,
    step_folder,
    step_of,
)
from opd.store.base import Store
from opd.store.local import LocalStore

# fetch(manifest, store_url or None) -> problems: brings every file to the processes that load it. The default serves one
# machine; a trainer on several has each rank call `fetch_shards(..., ranks=[rank])` and joins their answers.
Fetch = Callable[[Manifest, str | None], list[str]]


@dataclass(frozen=True, kw_only=True)
class ResumeDecision:
    """Where to resume from; `step` None means from the start. `rejected` says why newer steps were passed over."""

    step: int | None
    path: Path | None
    source: str
    manifest: Manifest | None
    rejected: tuple[str, ...]

    def describe(self) -> str:
        where = (
            "starting from the beginning" if self.step is None else f"resuming from step {self.step} ({self.source})"
        )
        return "\n".join([where, *(f"  passed over: {reason}" for reason in self.rejected)])


def candidate_steps(local: LocalStore, remote: Store | None) -> list[int]:
    """`complete_steps` of both places, and steps whose marker this disk cannot read: `try_step` says so and goes on."""

    def may_be_complete(step: int) -> bool:
        try:
            return has_file(local, step, COMPLETE_FILE)
        except StoreError:
            return True

    mine = [step for step in saved_steps(local) if may_be_complete(step)]
    return sorted({*mine, *complete_steps([remote] if remote is not None else [])})


def complete_steps(stores: Sequence[Store]) -> list[int]:
    """Steps with a COMPLETE marker in any of the places, ascending."""
    return sorted({step for store in stores for step in saved_steps(store) if has_file(store, step, COMPLETE_FILE)})


def newest_complete_step(store: Store) -> int | None:
    """The highest step with a COMPLETE marker, None without one."""
    return next(
        (step for step in sorted(saved_steps(store), reverse=True) if has_file(store, step, COMPLETE_FILE)), None
    )


def saved_steps(store: Store) -> list[int]:
    """Steps that have a folder, complete or not."""
    return [step for name in store.children(CHECKPOINTS_FOLDER) if (step := step_of(name)) is not None]


def has_file(store: Store, step: int, name: str) -> bool:
    return store.exists(f"{step_folder(step)}/{name}")


def read_sealed(store: Store, step: int) -> Manifest | None:
    """The manifest of a complete step, None if the step is not complete there."""
    try:
        complete = store.get(f"{step_folder(step)}/{COMPLETE_FILE}")
    except FileNotFoundError:
        return None
    try:
        data = store.get(f"{step_folder(step)}/{MANIFEST_FILE}")
    except FileNotFoundError as error:
        raise CorruptRecord(f"{COMPLETE_FILE} without {MANIFEST_FILE}") from error
    manifest = open_sealed(data, complete)
    if manifest.step != step:
        raise CorruptRecord(f"manifest.json is of step {manifest.step}")
    return manifest


def find_unfit(manifest: Manifest, spec_hash: str) -> list[str]:
    """Why a run must not resume from a sealed step, even if its files are whole; empty if it may."""
    if manifest.spec_hash != spec_hash:
        return [f"it was saved by another experiment (spec hash {manifest.spec_hash}, this run has {spec_hash})"]
    return manifest.find_gaps()


def find_wrong_sizes(store: Store, manifest: Manifest, *, is_own_disk: bool) -> list[str]:
    """Files that a place does not hold in the size that the manifest says, from its listing alone.

    Args:
        is_own_disk: the place is the driver's disk, where only the driver's files must be: ranks may have disks of their own.
    """
    folder = step_folder(manifest.step)
    sizes = {info.key.removeprefix(f"{folder}/"): info.size for info in store.list(folder)}
    problems = []
    for entry in manifest.files:
        if entry.path in sizes and sizes[entry.path] != entry.size:
            problems.append(f"{entry.path} has {sizes[entry.path]} bytes, the manifest says {entry.size}")
        elif entry.path not in sizes and (entry.rank == DRIVER_RANK or not is_own_disk):
            problems.append(f"{entry.path} is missing")
    return problems


def is_fit(store: Store, step: int, spec_hash: str, *, is_own_disk: bool) -> bool:
    """Whether a resume would take this place's copy of a step, as far as seal, manifest and sizes tell.

    Raises:
        StoreError: the place does not answer.
    """
    try:
        manifest = read_sealed(store, step)
        if manifest is None or find_unfit(manifest, spec_hash):
            return False
        return not find_wrong_sizes(store, manifest, is_own_disk=is_own_disk)
    except (CorruptRecord, CheckpointError):
        return False


def try_step(
    step: int, *, local: LocalStore, remote: Store | None, spec_hash: str, fetch: Fetch, rejected: list[str]
) -> ResumeDecision | None:
    """The decision for one step if any copy of it holds; what is wrong with the others is added to `rejected`."""
    copies: list[tuple[Manifest, str]] = []
    for store, source in ((local, "local"), (remote, "store")):
        try:
            manifest = read_sealed(store, step) if store is not None else None
        except (CorruptRecord, CheckpointError) as error:
            rejected.append(f"global_step_{step} ({source}): {error}")
            continue
        except StoreError as error:
            if store is not local:
                raise
            rejected.append(f"global_step_{step} ({source}): {error}")
            continue
        if manifest is None:
            continue
        if problems := find_unfit(manifest, spec_hash):
            rejected.append(f"global_step_{step} ({source}): {'; '.join(problems)}")
            continue
        copies.append((manifest, source))
    # A later attempt's save of the same step is the one that the run went on from; of equal ones the local one first.
    copies.sort(key=lambda copy: copy[0].attempt, reverse=True)
    for manifest, source in copies:
        problems = fetch(manifest, remote.url if remote is not None and source == "store" else None)
        if problems:
            rejected.append(f"global_step_{step} ({source}): {'; '.join(problems)}")
            continue
        if source == "store":
            local.put(f"{step_folder(step)}/{MANIFEST_FILE}", manifest.to_bytes())
            local.put(f"{step_folder(step)}/{COMPLETE_FILE}", manifest.seal())
        path = local.local_path(step_folder(step))
        return ResumeDecision(step=step, path=path, source=source, manifest=manifest, rejected=tuple(rejected))
    return None
