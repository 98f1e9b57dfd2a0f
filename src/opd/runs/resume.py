"""Choice of the checkpoint to resume from: sealed, whole, and verified before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

# fetch(manifest, store_url or None) -> problems: brings every file to the processes that load it. A trainer on several
# machines has each rank call `fetch_shards(..., ranks=[rank])` and joins their answers.
Fetch = Callable[[Manifest, str | None], list[str]]


@dataclass(frozen=True, kw_only=True)
class ResumeDecision:
    """The checkpoint to resume from; `step` None means from the start. `rejected` names newer steps with the reasons."""

    step: int | None = None
    path: Path | None = None
    source: str = ""
    manifest: Manifest | None = None
    rejected: tuple[str, ...] = ()

    def describe(self) -> str:
        where = f"resuming from step {self.step} ({self.source})"
        if self.step is None:
            where = "starting from the beginning"
        return "\n".join([where, *(f"  passed over: {reason}" for reason in self.rejected)])


def complete_steps(stores: Sequence[Store]) -> list[int]:
    """Return steps with a COMPLETE marker in any of the places, ascending."""
    return sorted({step for store in stores for step in saved_steps(store) if has_file(store, step, COMPLETE_FILE)})


def newest_complete_step(store: Store) -> int | None:
    """Return the highest step with a COMPLETE marker, None without one."""
    steps = sorted(saved_steps(store), reverse=True)
    return next((step for step in steps if has_file(store, step, COMPLETE_FILE)), None)


def saved_steps(store: Store) -> list[int]:
    """Return steps that have a folder, complete or not."""
    return [step for name in store.children(CHECKPOINTS_FOLDER) if (step := step_of(name)) is not None]


def has_file(store: Store, step: int, name: str) -> bool:
    return store.exists(f"{step_folder(step)}/{name}")


def read_sealed(store: Store, step: int) -> Manifest | None:
    """Return the manifest of a complete step, None if the step is not complete there."""
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
    """Return why a run must not resume from a sealed step, even if its files are whole."""
    if manifest.spec_hash != spec_hash:
        return [f"it was saved by another experiment (spec hash {manifest.spec_hash}, this run has {spec_hash})"]
    return manifest.find_gaps()


def find_wrong_sizes(store: Store, manifest: Manifest, *, is_own_disk: bool) -> list[str]:
    """Return files that a place does not hold in the manifest's size, by its listing alone.

    Args:
        is_own_disk: the place is the driver's disk, which must hold only the driver's files: ranks may have other disks.
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
    """Return True if a resume would take this place's copy of a step, by seal, manifest and sizes.

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
    """Return the decision for one step if any copy of it holds; add the faults of other copies to `rejected`."""
    for manifest, source in _fit_copies(step, local, remote, spec_hash, rejected):
        problems = fetch(manifest, remote.url if remote is not None and source == "store" else None)
        if not problems:
            return _taken(manifest, source, local)
        rejected.append(_rejection(step, source, "; ".join(problems)))
    return None


def _fit_copies(
    step: int, local: LocalStore, remote: Store | None, spec_hash: str, rejected: list[str]
) -> Iterator[tuple[Manifest, str]]:
    """Yield sealed copies of this experiment: the latest attempt's save first, of equal copies the local one."""
    copies: list[tuple[Manifest, str]] = []
    for store, source in ((local, "local"), (remote, "store")):
        try:
            manifest = read_sealed(store, step) if store is not None else None
        except (CorruptRecord, CheckpointError, StoreError) as error:
            if isinstance(error, StoreError) and store is not local:
                raise
            rejected.append(_rejection(step, source, error))
            continue
        if manifest is not None and (problems := find_unfit(manifest, spec_hash)):
            rejected.append(_rejection(step, source, "; ".join(problems)))
        elif manifest is not None:
            copies.append((manifest, source))
    yield from sorted(copies, key=lambda copy: copy[0].attempt, reverse=True)


def _rejection(step: int, source: str, reason: object) -> str:
    return f"global_step_{step} ({source}): {reason}"


def _taken(manifest: Manifest, source: str, local: LocalStore) -> ResumeDecision:
    """Return the decision for a copy whose files are here; seal a downloaded copy."""
    folder = step_folder(manifest.step)
    if source == "store":
        local.put(f"{folder}/{MANIFEST_FILE}", manifest.to_bytes())
        local.put(f"{folder}/{COMPLETE_FILE}", manifest.seal())
    return ResumeDecision(step=manifest.step, path=local.local_path(folder), source=source, manifest=manifest)
