"""Which experiment a run id stands for: run.json and spec.json, written once and compared at every later start."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opd.errors import AlreadyExists, SpecChanged
from opd.store.base import Store, json_bytes

RUN_FILE = "run.json"
SPEC_FILE = "spec.json"
# Raised when a reader of an older layout could misread a newer one.
LAYOUT_VERSION = 1


def settle_identity(
    stores: Sequence[Store], *, run_id: str, spec_hash: str, identity: Mapping[str, Any], spec: Mapping[str, Any]
) -> None:
    """Writes run.json and spec.json at the first start, compares the hash at every later one.

    Args:
        stores: the run directory's places; all are compared before any is written.
        identity: the spec's identity fields (model, data, algorithm, seed), which `spec_hash` was computed over.
        spec: the whole experiment, stored for readers.

    Raises:
        SpecChanged: the run id belongs to another spec hash; the message lists what differs.
    """
    # Through JSON and back, so that a tuple or an int key compares equal to what is stored.
    identity = json.loads(json_bytes(identity))
    record = {
        "layout_version": LAYOUT_VERSION,
        "run_id": run_id,
        "spec_hash": spec_hash,
        "identity": identity,
        "created_at_s": time.time(),
    }
    for store in stores:
        _compare(store, run_id, spec_hash, identity)
    for store in stores:
        if not store.exists(RUN_FILE):
            with contextlib.suppress(AlreadyExists):  # two first starts at once: the first one decides for both
                store.create(RUN_FILE, json_bytes(record))
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
        f"what differs (stored -> this):\n{changes or '  (nothing in the identity fields: another hash version)'}\n"
        "a run id stands for one experiment: choose another name, or restore the stored values to resume"
    )


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One line a differing leaf, sorted by path: `model.path: 'a' -> 'b'`, `(absent)` where a side lacks it."""
    old, new = dict(_leaves(before, "")), dict(_leaves(after, ""))
    return [
        f"{path}: {_shown(old, path)} -> {_shown(new, path)}"
        for path in sorted(old.keys() | new.keys())
        if _shown(old, path) != _shown(new, path)
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


def _shown(leaves: Mapping[str, Any], path: str) -> str:
    return repr(leaves[path]) if path in leaves else "(absent)"
