"""The experiment of a run id: run.json and spec.json, written once and compared at every later start."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opd.errors import AlreadyExists, SpecChanged, StoreError
from opd.runs.attempts import ENDED_FILE, OWNER_FILE
from opd.runs.manifest import COMPLETE_FILE
from opd.runs.metrics import METRICS_FILE
from opd.runs.result import RESULT_FILE
from opd.store.base import Store, json_bytes

RUN_FILE = "run.json"
SPEC_FILE = "spec.json"
# Rises when a reader of an older layout could misread a newer one.
LAYOUT_VERSION = 1


def settle_identity(
    stores: Sequence[Store], *, run_id: str, spec_hash: str, identity: Mapping[str, Any], spec: Mapping[str, Any]
) -> None:
    """Write run.json and spec.json at the first start, and compare the hash at every later start.

    Args:
        stores: the run directory's places; all are compared before any is written.
        identity: the fields that `spec_hash` covers (model, data, algorithm, seed).
        spec: the whole experiment, stored for readers.

    Raises:
        SpecChanged: the run id belongs to another spec hash; the message lists the differences.
    """
    identity = json.loads(json_bytes(identity))  # so that a tuple or an int key compares equal to its stored form
    record = {"layout_version": LAYOUT_VERSION, "run_id": run_id, "spec_hash": spec_hash, "identity": identity}
    try:
        for store in stores:
            _compare(store, run_id, spec_hash, identity)
    except SpecChanged as error:
        raise SpecChanged(f"{error}{_how_to_free(stores)}") from None
    for store in stores:
        if not store.exists(RUN_FILE):
            with contextlib.suppress(AlreadyExists):  # of two first starts at once the first decides for both
                store.create(RUN_FILE, json_bytes(record | {"created_at_s": time.time()}))
            _compare(store, run_id, spec_hash, identity)
        if not store.exists(SPEC_FILE):
            store.put_json(SPEC_FILE, spec)


def _compare(store: Store, run_id: str, spec_hash: str, identity: Mapping[str, Any]) -> None:
    stored = store.get_json(RUN_FILE)
    if stored is None or stored["spec_hash"] == spec_hash:
        return
    changes = "\n".join(f"  {line}" for line in describe_changes(stored["identity"], identity))
    raise SpecChanged(
        f"run id {run_id!r} in {store.url} belongs to spec hash {stored['spec_hash']}, this experiment has {spec_hash}; "
        f"the differences (stored -> this):\n{changes or '  (none in the identity fields: another hash version)'}\n"
        "a run id belongs to one experiment: choose another name, or restore the stored values to resume"
    )


def _how_to_free(stores: Sequence[Store]) -> str:
    """Return the command that frees a name under which nothing was trained; empty in a pod, and for a name with results."""
    if os.environ.get("RAY_ADDRESS"):
        return ""
    with contextlib.suppress(StoreError):
        found = [(store, {info.key: info.size for info in store.list("")}) for store in stores]
        if any(_is_worth_keeping(sizes) for _, sizes in found):
            return ""
        commands = [f"`opdctl delete {store.url} --results`" for store, sizes in found if sizes]
        return (
            "; nothing was trained under it (no sealed checkpoint, no metrics, no result): "
            f"{' and '.join(commands)} free{'s' * (len(commands) == 1)} the name"
        )
    return ""


def _is_worth_keeping(sizes: Mapping[str, int]) -> bool:
    """Return True if a run's objects, with its stages', hold a result of training, or an attempt without an end."""
    for key, size in sizes.items():
        folder, _, name = key.rpartition("/")
        if name in (COMPLETE_FILE, RESULT_FILE) or (name == METRICS_FILE and size):
            return True
        if name == OWNER_FILE and f"{folder}/{ENDED_FILE}" not in sizes:
            return True
    return False


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return one line for each differing leaf, sorted by path: `model.path: 'a' -> 'b'`, `(absent)` for a missing side."""
    old, new = ({path: repr(value) for path, value in _leaves(tree, "")} for tree in (before, after))
    return [
        f"{path}: {old.get(path, '(absent)')} -> {new.get(path, '(absent)')}"
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, value
