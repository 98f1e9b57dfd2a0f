"""Checkpoints of a run as its driver sees them: sealing a saved step, and the way to resuming from it and pruning it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from opd.errors import CheckpointError, CorruptRecord, StoreError
from opd.runs.attempts import check_owner
from opd.runs.manifest import CHECKPOINTS_FOLDER, COMPLETE_FILE, MANIFEST_FILE, Manifest, step_folder
from opd.runs.resume import (
    Fetch,
    ResumeDecision,
    candidate_steps,
    complete_steps,
    find_unfit,
    find_wrong_sizes,
    has_file,
    is_fit,
    read_sealed,
    saved_steps,
    try_step,
)
from opd.runs.shards import ShardReport, fetch_shards, staging_folder, sweep_older
from opd.store.base import NO_RETRY, Store
from opd.store.local import LocalStore
from opd.store.transfer import find_problems

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Checkpoints:
    """The checkpoints of one run, in the local run directory and, if it is another place, in the object store."""

    local: LocalStore
    remote: Store | None
    attempt: int
    token: str
    spec_hash: str
    # A step that the store seals is resumed from on other machines: what leads up to it must be in the store by then.
    before_store_seal: Callable[[], None] = lambda: None
    # What leads up to a step that the disk seals must be on the disk by then.
    before_local_seal: Callable[[], None] = lambda: None
    resumed_step: int | None = None
    # The checkpoint that this attempt has loaded or sealed last.
    current: Manifest | None = None
    num_failed_uploads: int = 0
    _in_progress: set[int] = field(default_factory=set)
    _sealed_step: int | None = None
    # Why a resume passes a step over, as this attempt has found out: retention must not count it.
    _unfit: dict[int, list[str]] = field(default_factory=dict)

    def folder(self, step: int) -> Path:
        """The local folder of a step, where it is sealed."""
        return self.local.local_path(step_folder(step))

    @property
    def staging(self) -> Path:
        """Where verl saves this attempt's steps, each in its `global_step_N`."""
        return self.local.local_path(staging_folder(self.attempt))

    def staged(self, step: int) -> Path:
        """The local folder of a step that verl has saved, until `move_in` brings its files to `folder`."""
        return self.staging / Path(step_folder(step)).name

    def check_owner(self) -> None:
        """Asked before anything is written: raises Overtaken as far as can be known.

        A store that is away does not stop the training. On a disk that attempts share, the local record of the newer
        owner still stops the older one.
        """
        self._check([self.local])
        self._if_store_answers("the look for another owner", lambda store: self._check([store]))

    def begin(self, step: int) -> bool:
        """Call before a step is saved: takes the seal off an older save of it and clears what was left behind.

        Returns:
            False if this is the step that was resumed from, which is complete: there is nothing to save.
        """
        if step == self.resumed_step:
            return False
        self.check_owner()
        self._in_progress.add(step)
        self._unfit.pop(step, None)
        _clear_step(self.local, step)
        sweep_older(self.staging)
        # If the store is away, its old copy stays sealed: whole as it is, and refused by its hashes once half replaced.
        self._if_store_answers(f"clearing global_step_{step}", lambda store: _clear_step(store, step))
        return True

    def finalise(self, step: int, reports: Sequence[ShardReport]) -> Manifest:
        """Seals a saved step once every rank has acknowledged: manifest.json, then COMPLETE; local first, then the store.

        A step whose upload failed is sealed locally only, counted in `num_failed_uploads` and warned of.

        Raises:
            Overtaken: the run is another's by now; the step stays unsealed.
            CheckpointError: a file is listed twice, or what a resume needs is not among them.
        """
        entries = sorted((entry for report in reports for entry in report.entries), key=lambda entry: entry.path)
        manifest = Manifest(step=step, attempt=self.attempt, spec_hash=self.spec_hash, files=tuple(entries))
        errors = [f"rank {report.rank}: {report.upload_error}" for report in reports if report.upload_error]
        self.check_owner()
        if gaps := manifest.find_gaps():
            raise CheckpointError(
                f"global_step_{step} is not sealed, no run could resume from it: {'; '.join(gaps)}; a save needs model, "
                "optimizer and extra state of every rank (verl's actor.checkpoint.save_contents) and the place in the data"
            )
        self.before_local_seal()
        _seal(self.local, manifest, lambda: self._check([self.local]))
        if self.remote is not None and not errors:
            try:
                errors = self._seal_remote(self.remote, manifest)
            except StoreError as error:
                errors = [str(error)]
        if errors:
            self.num_failed_uploads += 1
            logger.warning("global_step_%d is complete on the local disk only: %s", step, "; ".join(errors))
        self._in_progress.discard(step)
        self._sealed_step, self.current = step, manifest
        return manifest

    def complete_steps(self, store: Store | None = None) -> list[int]:
        """Steps with a COMPLETE marker, ascending: of one place, or of all."""
        return complete_steps(self._stores() if store is None else [store])

    def missing_in_store(self) -> list[Manifest]:
        """Checkpoints that are sealed locally, but not in the store or only as an earlier attempt saved them, by step."""
        if self.remote is None:
            return []
        missing = []
        for step in self.complete_steps(self.local):
            mine, stored = _readable(self.local, step), _readable(self.remote, step)
            if mine is None or find_unfit(mine, self.spec_hash):
                continue
            if stored is None or stored.attempt < mine.attempt:
                missing.append(mine)
        return missing

    def upload_missing(self, *, upload: Fetch | None = None) -> list[int]:
        """Uploads and seals what was saved while the store was away; what this machine does not hold whole is warned of.

        Args:
            upload: as `Fetch`, but from the processes to the store; the default serves one machine.

        Returns:
            The steps that the store has now got, ascending.

        Raises:
            StoreError: the store is still away.
        """
        uploaded: list[int] = []
        if self.remote is None:
            return uploaded
        for manifest in self.missing_in_store():
            problems = (upload or self._upload_from_here)(manifest, self.remote.url) or self._seal_remote(
                self.remote, manifest
            )
            if problems:
                logger.warning("global_step_%d is not in the store: %s", manifest.step, "; ".join(problems))
                continue
            uploaded.append(manifest.step)
        return uploaded

    def choose(self, *, fetch: Fetch | None = None) -> ResumeDecision:
        """The newest complete checkpoint whose hashes hold, brought to this machine; else the one before, and so on.

        Raises:
            StoreUnavailable: the store cannot be asked; resuming from an older local step would lose work.
        """
        rejected: list[str] = []
        for step in reversed(candidate_steps(self.local, self.remote)):
            if step not in self._unfit:
                reasons: list[str] = []
                decision = self._try(step, fetch, reasons)
                if decision is not None:
                    self.resumed_step, self.current = step, decision.manifest
                    return replace(decision, rejected=(*rejected, *reasons))
                self._unfit[step] = reasons
            rejected += self._unfit[step]
        return ResumeDecision(step=None, path=None, source="", manifest=None, rejected=tuple(rejected))

    def pass_over(self, step: int, reason: str) -> None:
        """Says that a step which `choose` gave cannot be loaded: it gives the one before from now on."""
        self._unfit[step] = [f"global_step_{step}: {reason}"]
        self.resumed_step = self.current = None

    def prune(self, *, keep_last: int | None, keep_every: int | None = None) -> list[int]:
        """Deletes complete checkpoints beyond the last `keep_last`, but for multiples of `keep_every`.

        Counts only what a resume would take. Never touches the step resumed from, one being saved, the one sealed last, or
        the newest one. COMPLETE goes first and manifest.json last, so that a kill in between leaves something no resume
        takes and the next call finishes.

        Returns:
            The deleted steps, ascending, which ranks with disks of their own are to delete; not those that stay here.
        """
        check_limits(keep_last, keep_every)
        if keep_last is None:
            return []
        self.check_owner()
        self.local.sweep_temporary(CHECKPOINTS_FOLDER)
        protected = {step for step in (*self._in_progress, self.resumed_step, self._sealed_step) if step is not None}
        deleted: set[int] = set()

        def prune_one(store: Store) -> None:
            def counts(step: int) -> bool:
                is_own_disk = store is self.local
                try:
                    return step not in self._unfit and is_fit(store, step, self.spec_hash, is_own_disk=is_own_disk)
                except StoreError:  # what cannot be read now counts as nothing that is kept
                    return False

            deleted.update(
                prune_store(store, keep_last=keep_last, keep_every=keep_every, protected=protected, is_fit=counts)
            )

        prune_one(self.local)
        self._if_store_answers("retention", prune_one)
        return sorted(deleted.difference(self.complete_steps(self.local)))

    def _check(self, stores: list[Store]) -> None:
        check_owner(stores, self.attempt, self.token)

    def _stores(self) -> list[Store]:
        return [self.local] if self.remote is None else [self.local, self.remote]

    def _if_store_answers(self, what: str, call: Callable[[Store], None]) -> None:
        """Does something in the object store that may be left out while it is away; one try, the training waits."""
        if self.remote is None:
            return
        try:
            call(self.remote.with_policy(NO_RETRY))
        except StoreError as error:
            logger.warning("%s is left out, the store is away: %s", what, error)

    def _seal_remote(self, remote: Store, manifest: Manifest) -> list[str]:
        """Seals a step in the store, unless that does not hold what was uploaded to it; what is wrong there."""
        self.before_store_seal()
        problems = [f"in {remote.url} {problem}" for problem in find_wrong_sizes(remote, manifest, is_own_disk=False)]
        if not problems:
            _seal(remote, manifest, lambda: self._check([remote, self.local]))
        return problems

    def _upload_from_here(self, manifest: Manifest, store_url: str | None) -> list[str]:
        folder = self.folder(manifest.step)
        problems = list(find_problems(folder, manifest.files).values())
        if problems or self.remote is None:
            return problems
        store = self.remote.child(step_folder(manifest.step))
        for entry in manifest.files:
            store.put_file(entry.path, folder / entry.path)
        return []

    def _try(self, step: int, fetch: Fetch | None, rejected: list[str]) -> ResumeDecision | None:
        return try_step(
            step,
            local=self.local,
            remote=self.remote,
            spec_hash=self.spec_hash,
            fetch=fetch or self._fetch_here,
            rejected=rejected,
        )

    def _fetch_here(self, manifest: Manifest, store_url: str | None) -> list[str]:
        folder, policy = self.folder(manifest.step), self.local.policy
        return fetch_shards(step_dir=folder, manifest=manifest, store_url=store_url, policy=policy)


def _seal(store: Store, manifest: Manifest, check: Callable[[], None]) -> None:
    """manifest.json, a last look whether the run is still ours, COMPLETE."""
    folder = step_folder(manifest.step)
    store.put(f"{folder}/{MANIFEST_FILE}", manifest.to_bytes())
    check()
    store.put(f"{folder}/{COMPLETE_FILE}", manifest.seal())


def _readable(store: Store, step: int) -> Manifest | None:
    """The sealed manifest of a step, None if there is none or it is damaged, which is warned of."""
    try:
        return read_sealed(store, step)
    except (CorruptRecord, CheckpointError) as error:
        logger.warning("global_step_%d of %s: %s", step, store.url, error)
        return None


def _clear_step(store: Store, step: int) -> None:
    store.delete(f"{step_folder(step)}/{COMPLETE_FILE}")
    store.delete_tree(step_folder(step))


def check_limits(keep_last: int | None, keep_every: int | None) -> None:
    """Raises CheckpointError for limits that would keep nothing."""
    if (keep_last is not None and keep_last < 1) or (keep_every is not None and keep_every < 1):
        raise CheckpointError(f"retention keep_last={keep_last}, keep_every={keep_every}: both must be at least 1")


def prune_store(
    store: Store, *, keep_last: int, keep_every: int | None, protected: Set[int], is_fit: Callable[[int], bool]
) -> list[int]:
    """Deletes the complete checkpoints of one place but for the last fit ones, the multiples and the protected ones.

    Only what is older than the newest fit step goes. What an interrupted deletion left there, a manifest without COMPLETE,
    goes too; a step that never got its manifest belongs to whoever saves it again.

    Args:
        is_fit: whether a resume would take this place's copy of a step; others do not count as kept.

    Returns:
        The deleted steps, ascending.
    """
    complete = complete_steps([store])
    last = list(islice(filter(is_fit, reversed(complete)), keep_last))
    if not last:
        return []
    kept = {*protected, *last, *(step for step in complete if keep_every and step % keep_every == 0)}
    half_deleted = {step for step in saved_steps(store) if has_file(store, step, MANIFEST_FILE)}
    doomed = sorted(step for step in half_deleted.union(complete) - kept if step < last[0])
    for step in doomed:
        delete_step(store, step)
    return doomed


def delete_step(store: Store, step: int) -> None:
    """COMPLETE first, so that no resume takes it any more; manifest.json last, so that a later call finishes."""
    folder = step_folder(step)
    store.delete(f"{folder}/{COMPLETE_FILE}")
    for info in store.list(folder):
        if info.key != f"{folder}/{MANIFEST_FILE}":
            store.delete(info.key)
    store.delete_tree(folder)
