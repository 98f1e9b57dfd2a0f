"""Comparison of a run's end with the uninterrupted run: weights, optimizer, rng, data position, metrics, result, attempts."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opd.runs.attempts import attempt_numbers, read_owner
from opd.runs.manifest import complete_steps, read_sealed, step_folder
from opd.runs.metrics import read_metrics
from opd.store.base import Store
from opd.store.local import LocalStore
from opd.store.transfer import find_problems

# Loading shards warns of what `torch.compile` could not do with their device mesh.
logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
# What a clock or the machine's load decides.
_MEASURED_FROM_START, _MEASURED_WITHIN = ("time", "timing", "perf/"), ("/timing", "/seconds_", "/perf/")


@dataclass(frozen=True, kw_only=True)
class Places:
    """The places of a run: its directory on this machine and the run in its object store."""

    local: LocalStore
    store: Store


def differences(wanted: Places, found: Places, *, num_starts: int, same_spec: bool = True) -> list[str]:
    """Return the differences of a finished run from the uninterrupted one, one line each.

    Args:
        wanted: the uninterrupted run.
        found: the other one; its store alone must hold metrics, result and the last checkpoint.
        num_starts: how often it was started; not every start lives long enough to claim an attempt.
        same_spec: False where the ranks are laid out otherwise (one node of two, two nodes of one), which the hash tells.
    """
    last = complete_steps([wanted.local])[-1]
    folders = [places.local.local_path(step_folder(last)) for places in (wanted, found)]
    return [
        *_checkpoint(*folders),
        *_sealed(found, last),
        *differing_rows(read_metrics([wanted.store]), read_metrics([found.store])),
        *_result(wanted.store, found.store, same_spec=same_spec),
        *_attempts(found.store, num_starts),
    ]


def _checkpoint(wanted: Path, found: Path) -> Iterator[str]:
    """Files of the same names that load to the same values, bit for bit; nothing foreign is unpickled, the runs wrote them."""
    files = sorted(path.relative_to(wanted).as_posix() for path in wanted.rglob("*") if path.is_file())
    for file in files:
        if file.endswith("manifest.json") or file.endswith("COMPLETE"):
            continue
        if not (found / file).is_file():
            yield f"checkpoint: {file} is missing"
        elif file.endswith(".pt"):
            mine, theirs = (torch.load(folder / file, weights_only=False) for folder in (found, wanted))
            yield from (f"checkpoint: {file}{where}" for where in unequal(mine, theirs))
        elif (wanted / file).read_bytes() != (found / file).read_bytes():
            yield f"checkpoint: {file} has other bytes"


def unequal(mine: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Paths at which two nested values differ by a bit."""
    mine, theirs = (getattr(value, "_local_tensor", value) for value in (mine, theirs))
    if type(mine) is not type(theirs):
        yield f"{where}: {type(mine).__name__} instead of {type(theirs).__name__}"
    elif isinstance(theirs, Mapping):
        if list(mine) != list(theirs):
            yield f"{where}: other keys"
            return
        for key in theirs:
            yield from unequal(mine[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(theirs, list | tuple):
        if len(mine) != len(theirs):
            yield f"{where}: {len(mine)} values instead of {len(theirs)}"
            return
        for number, pair in enumerate(zip(mine, theirs, strict=True)):
            yield from unequal(*pair, f"{where}[{number}]")
    elif isinstance(theirs, torch.Tensor):
        same = mine.dtype == theirs.dtype and mine.shape == theirs.shape
        if not same or _bytes(mine) != _bytes(theirs):
            yield f"{where}: another tensor"
    elif isinstance(theirs, np.ndarray):
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape or mine.tobytes() != theirs.tobytes():
            yield f"{where}: another array"
    elif hasattr(theirs, "__dict__") and not callable(theirs) and type(theirs).__eq__ is object.__eq__:
        yield from unequal(vars(mine), vars(theirs), where)
    elif mine != theirs:
        yield f"{where}: {str(mine)[:40]} instead of {str(theirs)[:40]}"


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _sealed(places: Places, step: int) -> Iterator[str]:
    """The last step is complete in both places, and its local files are what its manifest says."""
    folder = places.local.local_path(step_folder(step))
    for place, store in (("store", places.store), ("disk", places.local)):
        manifest = read_sealed(store, step)
        if manifest is None:
            yield f"global_step_{step} is not complete on the {place}"
        else:
            problems = find_problems(folder, manifest.files).values()
            yield from (f"global_step_{step}, manifest of the {place}: {problem}" for problem in problems)


def differing_rows(wanted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One row a step, each with the keys and values of the uninterrupted run but for what a clock decides."""
    steps = [row["step"] for row in found]
    if steps != [row["step"] for row in wanted]:
        yield f"metrics: steps {steps}"
        return
    for mine, theirs in zip(found, wanted, strict=True):
        a, b = ({key: value for key, value in row.items() if not _is_measured(key)} for row in (mine, theirs))
        keys = sorted(key for key in a.keys() | b.keys() if repr(a.get(key)) != repr(b.get(key)))
        if keys:
            yield f"metrics of step {mine['step']}: {keys[0]} is {a.get(keys[0])}, was {b.get(keys[0])} ({len(keys)} differ)"


def _is_measured(key: str) -> bool:
    return key.startswith(_MEASURED_FROM_START) or any(part in key for part in _MEASURED_WITHIN)


def _result(reference: Store, store: Store, *, same_spec: bool) -> Iterator[str]:
    result, wanted = store.get_json("result.json"), reference.get_json("result.json")
    if result is None or wanted is None:
        yield "result.json is missing"
        return
    own = ("attempt", "finished_at_s") if same_spec else ("attempt", "finished_at_s", "spec_hash")
    for key in sorted(result.keys() | wanted.keys()):
        if key not in own and result.get(key) != wanted.get(key):
            yield f"result.json: {key} is {result.get(key)}, was {wanted.get(key)}"
    if result["attempt"] != max(attempt_numbers(store)):
        yield f"result.json is of attempt {result['attempt']} of {max(attempt_numbers(store))}"


def _attempts(store: Store, num_starts: int) -> Iterator[str]:
    """Attempts are numbered without a gap, each by one owner, all of one spec."""
    numbers = attempt_numbers(store)
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) > num_starts:
        yield f"attempts {numbers} of {num_starts} starts"
    owners = [read_owner(store, number) for number in numbers]
    if None in owners:
        yield "an attempt without an owner"
        return
    if len({owner.spec_hash for owner in owners if owner}) != 1:
        yield "attempts of several specs"
    if len({owner.token for owner in owners if owner}) != len(owners):
        yield "two attempts of one owner"
