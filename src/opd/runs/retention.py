"""Retention: which checkpoints of one place go, and in which order their files go."""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import islice

from opd.errors import CheckpointError
from opd.runs.manifest import COMPLETE_FILE, MANIFEST_FILE, step_folder
from opd.runs.resume import complete_steps, has_file, saved_steps
from opd.store.base import Store


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
