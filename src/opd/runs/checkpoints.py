"""Checkpoints of a run on its driver: the seal of a saved step, the choice to resume from, uploads and retention."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from opd.errors import CheckpointError, CorruptRecord, RunError, StoreError
from opd.runs import manifest as sealed
from opd.runs.attempts import check_owner
from opd.runs.manifest import CHECKPOINTS_FOLDER, COMPLETE_FILE, MANIFEST_FILE, STAGING, Manifest, step_folder
from opd.runs.shards import ShardReport, sweep_older
from opd.store.base import NO_RETRY, Store
from opd.store.local import LocalStore

logger = logging.getLogger(__name__)

# fetch(manifest, store_url or None) -> problems: brings every file to the processes that load it. A trainer on several
# machines has each rank call `fetch_shards(..., ranks=[rank])` and joins their answers.
Fetch = Callable[[Manifest, str | None], list[str]]


@dataclass(frozen=True, kw_only=True)
class ResumeDecision:
    """The checkpoint to resume from; `step` None means from the start. `rejected` names newer steps with the reasons."""

    step: int | None = None
    source: str = ""
    manifest: Manifest | None = None
    rejected: tuple[str, ...] = ()

    def describe(self) -> str:
        resuming = f"resuming from step {self.step} ({self.source})"
        where = "starting from the beginning" if self.step is None else resuming
        return "\n  passed over: ".join([where, *self.rejected])


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
    spec_hash: str
    before_store_seal: Callable[[], None] = lambda: None
    before_local_seal: Callable[[], None] = lambda: None
    resumed_step: int | None = None
    num_failed_uploads: int = 0
    _begun: int | None = None  # the step being saved, or sealed last
    # Reasons why this attempt's resume passed a step over: retention must not count it.
    _unfit: dict[int, list[str]] = field(default_factory=dict)

    @property
    def places(self) -> list[Store]:
        return [self.local] if self.remote is None else [self.local, self.remote]

    def folder(self, step: int) -> Path:
        """Return the local folder in which a step is sealed."""
        return self.local.local_path(step_folder(step))

    def staged(self, step: int) -> Path:
        """Return the local folder in which verl saves a step, until `move_in` moves its files to `folder`."""
        return self.local.local_path(f"{CHECKPOINTS_FOLDER}/{STAGING}{self.attempt:04d}") / self.folder(step).name

    def check_owner(self) -> None:
        """Raise Overtaken as far as can be known; an unreachable store does not stop the training."""
        check_owner([self.local], self.attempt)
        self._if_store_answers("the look for another owner", lambda store: check_owner([store], self.attempt))

    def begin(self, step: int) -> bool:
        """Remove an older save of a step before it is saved again; return False for the step that was resumed from."""
        if step == self.resumed_step:
            return False
        self.check_owner()
        self._begun = step
        self._unfit.pop(step, None)
        _clear_step(self.local, step)
        sweep_older(self.staged(step).parent)
        # An unreachable store's old copy stays sealed: whole as it is, and its hashes fail once half of it is replaced.
        self._if_store_answers(f"clearing global_step_{step}", lambda store: _clear_step(store, step))
        return True

    def finalise(self, step: int, reports: Sequence[ShardReport]) -> Manifest:
        """Seal a saved step after every rank's report: manifest.json, then COMPLETE; local first, then the store.

        A step whose upload failed is sealed locally only, with a warning. Overtaken and CheckpointError (a file that a
        resume needs is missing, or listed twice) leave it unsealed.
        """
        entries = sorted((entry for report in reports for entry in report.entries), key=lambda entry: entry.path)
        manifest = Manifest(step=step, attempt=self.attempt, spec_hash=self.spec_hash, files=tuple(entries))
        self.check_owner()
        if gaps := manifest.find_gaps():
            raise CheckpointError(
                f"global_step_{step} is not sealed, no run could resume from it: {'; '.join(gaps)}. A save needs model, "
                "optimizer and extra state of every rank (verl's actor.checkpoint.save_contents) and the place in the data"
            )
        self.before_local_seal()
        self._seal(self.local, manifest)
        errors = [report.upload_error for report in reports if report.upload_error]
        try:
            errors = errors or self._seal_remote(manifest)
        except StoreError as error:
            errors = [str(error)]
        if errors:
            self.num_failed_uploads += 1
            logger.warning("global_step_%d is complete on the local disk only: %s", step, "; ".join(errors))
        return manifest

    def upload_missing(self, upload: Fetch) -> list[int]:
        """Upload and seal checkpoints that the store lacks or has only as an earlier attempt saved them; return the steps.

        `upload` works as `Fetch`, but from the processes to the store. Damaged files here make a warning.
        """
        uploaded: list[int] = []
        for step in [] if self.remote is None else sealed.complete_steps([self.local]):
            assert self.remote is not None
            problems: list[str] = []
            copies = {place.url: manifest for manifest, place in self._fit_copies(step, problems)}
            mine, stored = copies.get(self.local.url), copies.get(self.remote.url)
            if mine is not None and (stored is None or stored.attempt < mine.attempt):
                problems = upload(mine, self.remote.url) or self._seal_remote(mine)
                uploaded += [] if problems else [step]
            if problems:
                logger.warning("global_step_%d is not in the store: %s", step, "; ".join(problems))
        return uploaded

    def choose(self, fetch: Fetch) -> ResumeDecision:
        """Bring the newest complete checkpoint with the right hashes to this machine; else the step before, and so on.

        Raises:
            StoreUnavailable: the store does not answer; an older local step would lose work.
        """
        rejected: list[str] = []
        for step in sorted({step for place in self.places for step in sealed.saved_steps(place)}, reverse=True):
            if step in self._unfit:
                rejected += self._unfit[step]
                continue
            reasons: list[str] = []
            for manifest, place in self._fit_copies(step, reasons):
                if problems := fetch(manifest, place.url if place is self.remote else None):
                    reasons.append(self._rejection(step, place, "; ".join(problems)))
                    continue
                if place is self.remote:  # a downloaded copy
                    self._seal(self.local, manifest)
                self.resumed_step = step
                source, passed_over = "local" if place is self.local else "store", (*rejected, *reasons)
                return ResumeDecision(step=step, source=source, manifest=manifest, rejected=passed_over)
            if reasons:
                self._unfit[step] = reasons
                rejected += reasons
        return ResumeDecision(rejected=tuple(rejected))

    def _fit_copies(self, step: int, reasons: list[str]) -> Iterator[tuple[Manifest, Store]]:
        """Yield sealed copies of this experiment, the latest attempt's first, of equal ones the local one; add to `reasons`."""
        copies: list[tuple[Manifest, Store]] = []
        for place in self.places:
            try:
                if (manifest := sealed.read_fit(place, step, self.spec_hash)) is not None:
                    copies.append((manifest, place))
            except (CorruptRecord, CheckpointError, StoreError) as error:
                if isinstance(error, StoreError) and place is not self.local:
                    raise
                reasons.append(self._rejection(step, place, error))
        yield from sorted(copies, key=lambda copy: copy[0].attempt, reverse=True)

    def _rejection(self, step: int, place: Store, reason: object) -> str:
        return f"global_step_{step} ({'local' if place is self.local else 'store'}): {reason}"

    def pass_over(self, step: int, reason: str) -> None:
        """Mark a chosen step as one that cannot be loaded: `choose` gives the step before from now on."""
        self._unfit[step] = [f"global_step_{step}: {reason}"]
        self.resumed_step = None

    def prune(self, *, keep_last: int | None, keep_every: int | None = None) -> list[int]:
        """Delete complete checkpoints beyond the last `keep_last`, except for multiples of `keep_every`; return their steps.

        Only steps that a resume would take count. The step resumed from, a step being saved, the step sealed last and the
        newest step stay. COMPLETE goes first and manifest.json last: after a kill the next call continues.
        """
        if keep_last is None:
            return []
        self.check_owner()
        deleted = self._prune_in(self.local, keep_last, keep_every)
        self._if_store_answers("retention", lambda store: deleted.update(self._prune_in(store, keep_last, keep_every)))
        return sorted(deleted.difference(sealed.complete_steps([self.local])))

    def _prune_in(self, store: Store, keep_last: int, keep_every: int | None) -> set[int]:
        """Prune one place: only steps older than the newest fit step go, and remains of interrupted deletions.

        Such remains are a manifest without COMPLETE. A step without its manifest belongs to the attempt that saves it.
        """
        complete = list(sealed.newest_complete(store))
        last = list(islice((step for step in complete if self._counts(store, step)), keep_last))
        if not last:
            return set()
        kept = {self._begun, self.resumed_step, *last}
        kept.update(step for step in complete if keep_every and step % keep_every == 0)
        listed = {step for step in sealed.saved_steps(store) if store.exists(f"{step_folder(step)}/{MANIFEST_FILE}")}
        doomed = {step for step in listed.union(complete) - kept if step < last[0]}
        for folder in map(step_folder, sorted(doomed)):
            store.delete(f"{folder}/{COMPLETE_FILE}")
            for info in store.list(folder):
                if info.key != f"{folder}/{MANIFEST_FILE}":
                    store.delete(info.key)
            store.delete_tree(folder)
        return doomed

    def _counts(self, store: Store, step: int) -> bool:
        """Return True if a resume would take this place's copy of a step, by seal, manifest and sizes."""
        try:
            manifest = sealed.read_fit(store, step, self.spec_hash)
            if step in self._unfit or manifest is None:
                return False
            return not sealed.find_wrong_sizes(store, manifest, is_own_disk=store is self.local)
        except RunError:  # an unreadable copy does not count as kept
            return False

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
        check_owner([self.local] if store is self.local else [store, self.local], self.attempt)
        store.put(f"{folder}/{COMPLETE_FILE}", manifest.seal())

    def _seal_remote(self, manifest: Manifest) -> list[str]:
        """Seal a step in the store, if there is one; return what is wrong with the uploaded files there."""
        if self.remote is None:
            return []
        self.before_store_seal()
        problems = sealed.find_wrong_sizes(self.remote, manifest, is_own_disk=False)
        if not problems:
            self._seal(self.remote, manifest)
        return [f"in {self.remote.url} {problem}" for problem in problems]


def _clear_step(store: Store, step: int) -> None:
    store.delete(f"{step_folder(step)}/{COMPLETE_FILE}")
    store.delete_tree(step_folder(step))
