"""Checkpoints of a run on its driver: the seal of a saved step, the choice to resume from, uploads and retention."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from opd.errors import CheckpointError, CorruptRecord, StoreError
from opd.runs.attempts import check_owner
from opd.runs.manifest import CHECKPOINTS_FOLDER, COMPLETE_FILE, MANIFEST_FILE, Manifest, step_folder
from opd.runs.resume import (
    Fetch,
    ResumeDecision,
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
    """The checkpoints of one run, in the local run directory and, if it is another place, in the object store.

    Args:
        before_store_seal: stores what leads up to a step: another machine may resume from it.
        before_local_seal: syncs what leads up to a step to the disk.
    """

    local: LocalStore
    remote: Store | None
    attempt: int
    token: str
    spec_hash: str
    before_store_seal: Callable[[], None] = lambda: None
    before_local_seal: Callable[[], None] = lambda: None
    resumed_step: int | None = None
    # The checkpoint that this attempt has loaded or sealed last.
    current: Manifest | None = None
    num_failed_uploads: int = 0
    _in_progress: set[int] = field(default_factory=set)
    _sealed_step: int | None = None
    # Reasons why this attempt's resume passed a step over: retention must not count it.
    _unfit: dict[int, list[str]] = field(default_factory=dict)

    def folder(self, step: int) -> Path:
        """Return the local folder in which a step is sealed."""
        return self.local.local_path(step_folder(step))

    def staged(self, step: int) -> Path:
        """Return the local folder in which verl saves a step, until `move_in` moves its files to `folder`."""
        return self.local.local_path(staging_folder(self.attempt)) / self.folder(step).name

    def check_owner(self) -> None:
        """Raise Overtaken as far as can be known; an unreachable store does not stop the training."""
        self._check([self.local])
        self._if_store_answers("the look for another owner", lambda store: self._check([store]))

    def begin(self, step: int) -> bool:
        """Remove an older save of a step before it is saved again; return False for the step that was resumed from."""
        if step == self.resumed_step:
            return False
        self.check_owner()
        self._in_progress.add(step)
        self._unfit.pop(step, None)
        _clear_step(self.local, step)
        sweep_older(self.staged(step).parent)
        # An unreachable store's old copy stays sealed: whole as it is, and its hashes fail once half of it is replaced.
        self._if_store_answers(f"clearing global_step_{step}", lambda store: _clear_step(store, step))
        return True

    def finalise(self, step: int, reports: Sequence[ShardReport]) -> Manifest:
        """Seal a saved step after every rank's report: manifest.json, then COMPLETE; local first, then the store.

        A step whose upload failed is sealed locally only, with a warning.

        Raises:
            Overtaken: another claim owns the run; the step stays unsealed.
            CheckpointError: a file is listed twice, or a file that a resume needs is missing.
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
        self._seal(self.local, manifest)
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
        """Return steps with a COMPLETE marker, ascending: in one place, or in all."""
        everywhere = [self.local] if self.remote is None else [self.local, self.remote]
        return complete_steps(everywhere if store is None else [store])

    def upload_missing(self, *, upload: Fetch | None = None) -> list[int]:
        """Upload and seal checkpoints that the store lacks or has only as an earlier attempt saved them.

        Args:
            upload: as `Fetch`, but from the processes to the store; the default serves one machine.

        Returns:
            The steps. Damaged files here make a warning.

        Raises:
            StoreError: the store is still unreachable.
        """
        uploaded: list[int] = []
        for step in [] if self.remote is None else self.complete_steps(self.local):
            assert self.remote is not None
            mine, stored = _readable(self.local, step), _readable(self.remote, step)
            if mine is None or find_unfit(mine, self.spec_hash) or (stored and stored.attempt >= mine.attempt):
                continue
            problems = (upload or self._upload_from_here)(mine, self.remote.url)
            if problems := problems or self._seal_remote(self.remote, mine):
                logger.warning("global_step_%d is not in the store: %s", step, "; ".join(problems))
            else:
                uploaded.append(step)
        return uploaded

    def choose(self, *, fetch: Fetch | None = None) -> ResumeDecision:
        """Bring the newest complete checkpoint with the right hashes to this machine; else the step before, and so on.

        Raises:
            StoreUnavailable: the store does not answer; an older local step would lose work.
        """
        rejected: list[str] = []
        remotes = [] if self.remote is None else self.complete_steps(self.remote)
        for step in sorted({*saved_steps(self.local), *remotes}, reverse=True):
            if step not in self._unfit:
                reasons: list[str] = []
                decision = try_step(
                    step,
                    local=self.local,
                    remote=self.remote,
                    spec_hash=self.spec_hash,
                    fetch=fetch or self._fetch_here,
                    rejected=reasons,
                )
                if decision is not None:
                    self.resumed_step, self.current = step, decision.manifest
                    return replace(decision, rejected=(*rejected, *reasons))
                if not reasons:  # no copy is sealed
                    continue
                self._unfit[step] = reasons
            rejected += self._unfit[step]
        return ResumeDecision(rejected=tuple(rejected))

    def pass_over(self, step: int, reason: str) -> None:
        """Mark a chosen step as one that cannot be loaded: `choose` gives the step before from now on."""
        self._unfit[step] = [f"global_step_{step}: {reason}"]
        self.resumed_step = self.current = None

    def prune(self, *, keep_last: int | None, keep_every: int | None = None) -> list[int]:
        """Delete complete checkpoints beyond the last `keep_last`, except for multiples of `keep_every`.

        Only steps that a resume would take count. The step resumed from, a step being saved, the step sealed last and the
        newest step stay. COMPLETE goes first and manifest.json last: after a kill the next call continues.

        Returns:
            Deleted steps, ascending, for ranks with disks of their own to delete; not steps that stay here.
        """
        if (keep_last is not None and keep_last < 1) or (keep_every is not None and keep_every < 1):
            raise CheckpointError(f"retention keep_last={keep_last}, keep_every={keep_every}: both must be at least 1")
        if keep_last is None:
            return []
        self.check_owner()
        self.local.sweep_temporary(CHECKPOINTS_FOLDER)
        deleted = self._prune_in(self.local, keep_last, keep_every)
        self._if_store_answers("retention", lambda store: deleted.update(self._prune_in(store, keep_last, keep_every)))
        return sorted(deleted.difference(self.complete_steps(self.local)))

    def _prune_in(self, store: Store, keep_last: int, keep_every: int | None) -> set[int]:
        """Prune one place: only steps older than the newest fit step go, and remains of interrupted deletions.

        Such remains are a manifest without COMPLETE. A step without its manifest belongs to the attempt that saves it.
        """
        complete = complete_steps([store])
        last = list(islice(filter(lambda step: self._counts(store, step), reversed(complete)), keep_last))
        if not last:
            return set()
        kept = {*self._in_progress, self.resumed_step, self._sealed_step, *last}
        kept.update(step for step in complete if keep_every and step % keep_every == 0)
        half_deleted = {step for step in saved_steps(store) if has_file(store, step, MANIFEST_FILE)}
        doomed = {step for step in half_deleted.union(complete) - kept if step < last[0]}
        for step in sorted(doomed):
            folder = step_folder(step)
            store.delete(f"{folder}/{COMPLETE_FILE}")
            for info in store.list(folder):
                if info.key != f"{folder}/{MANIFEST_FILE}":
                    store.delete(info.key)
            store.delete_tree(folder)
        return doomed

    def _counts(self, store: Store, step: int) -> bool:
        """Return True if a resume would take this place's copy of a step; an unreadable copy does not count as kept."""
        try:
            is_own_disk = store is self.local
            return step not in self._unfit and is_fit(store, step, self.spec_hash, is_own_disk=is_own_disk)
        except StoreError:
            return False

    def _check(self, stores: list[Store]) -> None:
        check_owner(stores, self.attempt, self.token)

    def _if_store_answers(self, what: str, call: Callable[[Store], None]) -> None:
        """Try once in the object store; the training waits, so an unreachable store makes a warning."""
        if self.remote is None:
            return
        try:
            call(self.remote.with_policy(NO_RETRY))
        except StoreError as error:
            logger.warning("%s is left out, the store does not take it: %s", what, error)

    def _seal(self, store: Store, manifest: Manifest) -> None:
        """Write manifest.json, check the owner once more, and write COMPLETE."""
        folder = step_folder(manifest.step)
        store.put(f"{folder}/{MANIFEST_FILE}", manifest.to_bytes())
        self._check([self.local] if store is self.local else [store, self.local])
        store.put(f"{folder}/{COMPLETE_FILE}", manifest.seal())

    def _seal_remote(self, remote: Store, manifest: Manifest) -> list[str]:
        """Seal a step in the store; return what is wrong with the uploaded files there."""
        self.before_store_seal()
        problems = [f"in {remote.url} {problem}" for problem in find_wrong_sizes(remote, manifest, is_own_disk=False)]
        if not problems:
            self._seal(remote, manifest)
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

    def _fetch_here(self, manifest: Manifest, store_url: str | None) -> list[str]:
        folder, policy = self.folder(manifest.step), self.local.policy
        return fetch_shards(step_dir=folder, manifest=manifest, store_url=store_url, policy=policy)


def _readable(store: Store, step: int) -> Manifest | None:
    """Return the sealed manifest of a step, None if there is none or, with a warning, a damaged one."""
    try:
        return read_sealed(store, step)
    except (CorruptRecord, CheckpointError) as error:
        logger.warning("global_step_%d of %s: %s", step, store.url, error)
        return None


def _clear_step(store: Store, step: int) -> None:
    store.delete(f"{step_folder(step)}/{COMPLETE_FILE}")
    store.delete_tree(step_folder(step))
