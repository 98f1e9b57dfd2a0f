"""The experiment of a run id: run.json and spec.json, written by its first attempt and compared at every later start."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from opd.errors import SpecChanged
from opd.runs.attempts import ATTEMPTS_FOLDER, STARTS_FOLDER
from opd.runs.metrics import METRICS_FILE
from opd.store.base import Store, json_bytes

RUN_FILE = "run.json"
SPEC_FILE = "spec.json"


def is_unused(keys: Iterable[str]) -> bool:
    """Return True for the files of a run whose attempts have done nothing: its name is free for another experiment."""
    of_attempts = (f"{ATTEMPTS_FOLDER}/", f"{STARTS_FOLDER}/", "data/")  # each attempt writes bundled tasks anew
    return not any(f"/{METRICS_FILE}" in key or ("/" in key and not key.startswith(of_attempts)) for key in keys)


def settle_identity(
    stores: Sequence[Store], *, run_id: str, spec_hash: str, identity: Mapping[str, Any], spec: Mapping[str, Any],
    is_claimed: bool,
) -> None:  # fmt: skip
    """Raise SpecChanged if the run id is another experiment's that has begun; write run.json and spec.json once it `is_claimed`.

    `identity` holds the fields that `spec_hash` covers; `spec` is the whole experiment, for readers.
    """
    identity = json.loads(json_bytes(identity))  # so that a tuple or an int key compares equal to its stored form
    records = [(store, store.get_json(RUN_FILE)) for store in stores]
    others = [(store, stored) for store, stored in records if stored is not None and stored["spec_hash"] != spec_hash]
    if others and not is_unused(info.key for store in stores for info in store.list("")):
        store, other = others[0]
        changes = "\n".join(f"  {line}" for line in describe_changes(other["identity"], identity))
        raise SpecChanged(
            f"run id {run_id!r} in {store.url} belongs to spec hash {other['spec_hash']}, this experiment has {spec_hash}. "
            f"The differences (stored -> this):\n{changes or '  (none in the identity fields: another hash version)'}\n"
            "a run id belongs to one experiment. Choose another name (`--name NAME`, or the key `name`), restore the stored "
            f"values to resume, or delete the run with its results: `opdctl delete {store.url} --results --yes`"
        )
    for store, stored in records if is_claimed else ():
        if stored is None or stored["spec_hash"] != spec_hash:
            store.put_json(SPEC_FILE, spec)  # first: after a kill in between the next start writes both
            store.put_json(RUN_FILE, {"run_id": run_id, "spec_hash": spec_hash, "identity": identity})


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
