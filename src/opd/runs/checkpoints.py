"""Checkpoints of a run as its driver sees them: sealing a saved step, choosing the one to resume from, retention."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opd.runs.attempts import check_owner
from opd.runs.errors import CheckpointError, CorruptRecord, IncompleteCheckpoint, StoreError
from opd.runs.manifest import (
    CHECKPOINTS_FOLDER,
    COMPLETE_FILE,
    MANIFEST_FILE,
    Manifest,
    find_problem,
    open_sealed,
    step_folder,
    step_of,
)
from opd.runs.shards import ShardReport, fetch_shards
from opd.runs.store import NO_RETRY, Store
from opd.runs.store_local import LocalStore

logger = logging.getLogger(__name__)

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


@dataclass(kw_only=True)
class Checkpoints:
    """The checkpoints of one run, in the local run directory and, if it is another place, in the object store."""

    local: LocalStore
    remote: Store | None
    attempt: int
    spec_hash: str
    resumed_step: int | None = None
    num_failed_uploads: int = 0
    _in_progress: set[int] = field(default_factory=set)

    def folder(self, step: int) -> Path:
        """The local folder of a step, where verl saves it."""
        return self.local.local_path(step_folder(step))

    def begin(self, step: int) -> bool:
        """Call before a step is saved: takes the seal off an older save of it and clears what was left behind.

        Returns:
            False if this is the step that was resumed from, which is complete: there is nothing to save.
        """
        if step == self.resumed_step:
            return False
        self._check_before_local_write()
        self._in_progress.add(step)
        _clear_step(self.local, step)
        # If the store is away, its old copy stays sealed: whole as it is, and refused by its hashes once half replaced.
        self._if_store_answers(f"clearing global_step_{step}", lambda store: _clear_step(store, step))
        return True

    def finalise(self, step: int, reports: Sequence[ShardReport]) -> Manifest:
        """Seals a saved step once every rank has acknowledged: manifest.json, then COMPLETE; local first, then the store.

        A step whose upload failed is sealed locally only, counted in `num_failed_uploads` and warned of.

        Raises:
            Overtaken: a newer attempt owns the run; the step stays unsealed.
            CheckpointError: a file is listed twice, or none at all.
        """
        entries = sorted((entry for report in reports for entry in report.entries), key=lambda entry: entry.path)
        manifest = Manifest(step=step, attempt=self.attempt, spec_hash=self.spec_hash, files=tuple(entries))
        errors = [f"rank {report.rank}: {report.upload_error}" for report in reports if report.upload_error]
        self._check_before_local_write()
        _seal(self.local, manifest, lambda: check_owner([self.local], self.attempt))
        if self.remote is not None and not errors:
            try:
                self._seal_remote(self.remote, manifest)
            except StoreError as error:
                errors.append(str(error))
        if errors:
            self.num_failed_uploads += 1
            logger.warning("global_step_%d is complete on the local disk only: %s", step, "; ".join(errors))
        self._in_progress.discard(step)
        return manifest

    def complete_steps(self, store: Store | None = None) -> list[int]:
        """Steps with a COMPLETE marker, ascending: of one place, or of all."""
        places = self._stores() if store is None else [store]
        return sorted({step for place in places for step in _steps(place) if _has(place, step, COMPLETE_FILE)})

    def missing_in_store(self) -> list[int]:
        """Steps that are complete locally but not in the store, ascending."""
        if self.remote is None:
            return []
        return sorted(set(self.complete_steps(self.local)) - set(self.complete_steps(self.remote)))

    def upload_missing(self, *, upload: Fetch | None = None) -> list[int]:
        """Uploads and seals what was saved while the store was away; what this machine does not hold whole is warned of.

        Args:
            upload: as `Fetch`, but from the processes to the store; the default serves one machine.

        Returns:
            The steps that the store has now got, ascending.

        Raises:
            StoreError: the store is still away.
        """
        uploaded = []
        for step in self.missing_in_store():
            manifest = _read_sealed(self.local, step)
            if manifest is None or self.remote is None:
                continue
            problems = (upload or self._upload_from_here)(manifest, self.remote.url)
            if problems:
                logger.warning("global_step_%d is not in the store: %s", step, "; ".join(problems))
                continue
            self._seal_remote(self.remote, manifest)
            uploaded.append(step)
        return uploaded

    def choose(self, *, fetch: Fetch | None = None) -> ResumeDecision:
        """The newest complete checkpoint whose hashes hold, brought to this machine; else the one before, and so on.

        Raises:
            StoreUnavailable: the store cannot be asked; resuming from an older local step would lose work.
        """
        rejected: list[str] = []
        for step in reversed(self.complete_steps()):
            decision = self._try(step, fetch or self._fetch_here, rejected)
            if decision is not None:
                self.resumed_step = step
                return decision
        return ResumeDecision(step=None, path=None, source="", manifest=None, rejected=tuple(rejected))

    def require(self, step: int, *, fetch: Fetch | None = None) -> ResumeDecision:
        """One named checkpoint, verified and on this machine (for eval and convert).

        Raises:
            IncompleteCheckpoint: it is missing, unfinished or damaged; the message names it and says why.
        """
        rejected: list[str] = []
        if step in self.complete_steps():
            decision = self._try(step, fetch or self._fetch_here, rejected)
            if decision is not None:
                return decision
        reasons = "; ".join(rejected) or f"it has no {COMPLETE_FILE} marker"
        complete = ", ".join(map(str, self.complete_steps())) or "none"
        raise IncompleteCheckpoint(
            f"checkpoint global_step_{step} of {self.local.url}: {reasons}; complete steps: {complete}"
        )

    def prune(self, *, keep_last: int | None, keep_every: int | None = None) -> list[int]:
        """Deletes complete checkpoints beyond the last `keep_last`, but for multiples of `keep_every`.

        Never touches the step resumed from, one being saved, or the newest one. COMPLETE goes first and manifest.json
        last, so that a kill in between leaves something no resume takes and the next call finishes.

        Returns:
            The deleted steps, ascending; ranks with disks of their own delete the same ones.
        """
        if keep_last is None:
            return []
        if keep_last < 1 or (keep_every is not None and keep_every < 1):
            raise CheckpointError(f"retention keep_last={keep_last}, keep_every={keep_every}: both must be at least 1")
        self._check_before_local_write()
        self.local.sweep_temporary(CHECKPOINTS_FOLDER)
        deleted: set[int] = set()

        def prune_one(store: Store) -> None:
            check_owner([store], self.attempt)
            complete = self.complete_steps(store)
            kept = set(complete[-keep_last:]) | self._in_progress | {self.resumed_step}
            kept |= {step for step in complete if keep_every and step % keep_every == 0}
            half_deleted = {step for step in _steps(store) if _has(store, step, MANIFEST_FILE)} - set(complete)
            old = {step for step in half_deleted if complete and step < complete[-1]}
            for step in sorted((set(complete) | old) - kept):
                _delete_step(store, step)
                deleted.add(step)

        prune_one(self.local)
        self._if_store_answers("retention", prune_one)
        return sorted(deleted)

    def _stores(self) -> list[Store]:
        return [self.local] if self.remote is None else [self.local, self.remote]

    def _check_before_local_write(self) -> None:
        """Raises Overtaken as far as can be known: a store that is away does not stop the training.

        On a disk that attempts share, the local record of the newer owner still stops the older one.
        """
        check_owner([self.local], self.attempt)
        self._if_store_answers("the check for a newer attempt", lambda store: check_owner([store], self.attempt))

    def _if_store_answers(self, what: str, call: Callable[[Store], None]) -> None:
        """Does something in the object store that may be left out while it is away; one try, the training waits."""
        if self.remote is None:
            return
        try:
            call(self.remote.with_policy(NO_RETRY))
        except StoreError as error:
            logger.warning("%s is left out, the store is away: %s", what, error)

    def _seal_remote(self, remote: Store, manifest: Manifest) -> None:
        _seal(remote, manifest, lambda: check_owner([remote, self.local], self.attempt))

    def _upload_from_here(self, manifest: Manifest, store_url: str | None) -> list[str]:
        folder = self.folder(manifest.step)
        problems = [problem for entry in manifest.files if (problem := find_problem(folder, entry))]
        if problems or self.remote is None:
            return problems
        store = self.remote.child(step_folder(manifest.step))
        for entry in manifest.files:
            store.put_file(entry.path, folder / entry.path)
        return []

    def _fetch_here(self, manifest: Manifest, store_url: str | None) -> list[str]:
        return fetch_shards(step_dir=self.folder(manifest.step), manifest=manifest, store_url=store_url)

    def _try(self, step: int, fetch: Fetch, rejected: list[str]) -> ResumeDecision | None:
        """The decision for one step if any copy of it holds; what is wrong with the others goes to `rejected`."""
        copies: list[tuple[Manifest, str]] = []
        for store, source in zip(self._stores(), ("local", "store"), strict=False):
            try:
                manifest = _read_sealed(store, step)
            except (CorruptRecord, CheckpointError) as error:
                rejected.append(f"global_step_{step} ({source}): {error}")
                continue
            if manifest is not None:
                copies.append((manifest, source))
        # A later attempt's save of the same step is the one that the run went on from; equal ones: no download first.
        copies.sort(key=lambda copy: copy[0].attempt, reverse=True)
        for manifest, source in copies:
            if source == "store":
                self.local.delete(f"{step_folder(step)}/{COMPLETE_FILE}")  # its files are about to be replaced
            problems = fetch(manifest, self.remote.url if self.remote is not None and source == "store" else None)
            if problems:
                rejected.append(f"global_step_{step} ({source}): {'; '.join(problems)}")
                continue
            if source == "store":
                self.local.put(f"{step_folder(step)}/{MANIFEST_FILE}", manifest.to_bytes())
                self.local.put(f"{step_folder(step)}/{COMPLETE_FILE}", manifest.seal())
            return ResumeDecision(
                step=step, path=self.folder(step), source=source, manifest=manifest, rejected=tuple(rejected)
            )
        return None


def _steps(store: Store) -> list[int]:
    return [step for name in store.children(CHECKPOINTS_FOLDER) if (step := step_of(name)) is not None]


def _has(store: Store, step: int, name: str) -> bool:
    return store.exists(f"{step_folder(step)}/{name}")


def _read_sealed(store: Store, step: int) -> Manifest | None:
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


def _seal(store: Store, manifest: Manifest, check: Callable[[], None]) -> None:
    """manifest.json, a last look whether the run is still ours, COMPLETE."""
    folder = step_folder(manifest.step)
    store.put(f"{folder}/{MANIFEST_FILE}", manifest.to_bytes())
    check()
    store.put(f"{folder}/{COMPLETE_FILE}", manifest.seal())


def _clear_step(store: Store, step: int) -> None:
    store.delete(f"{step_folder(step)}/{COMPLETE_FILE}")
    store.delete_tree(step_folder(step))


def _delete_step(store: Store, step: int) -> None:
    folder = step_folder(step)
    store.delete(f"{folder}/{COMPLETE_FILE}")
    for info in store.list(folder):
        if info.key != f"{folder}/{MANIFEST_FILE}":
            store.delete(info.key)
    store.delete_tree(folder)
