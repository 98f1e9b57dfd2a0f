"""The checkpoint to convert: its place, its seal, its run's records, the shard files that it must have, and the verified files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd.convert.errors import ConvertError, incomplete
from opd.convert.reporter import Reporter
from opd.errors import CheckpointError, CorruptRecord
from opd.runs.identity import RUN_FILE, SPEC_FILE
from opd.runs.manifest import (
    CHECKPOINTS_FOLDER,
    COMPLETE_FILE,
    MANIFEST_FILE,
    Manifest,
    open_sealed,
    step_of,
)
from opd.store.base import Store
from opd.store.remote import open_store
from opd.store.transfer import ListedFile, bring, find_problems

CONFIG_FILE = "fsdp_config.json"
LORA_FILE = "lora_train_meta.json"
HUGGINGFACE_FOLDER = "huggingface"
_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def shard_name(world_size: int, rank: int) -> str:
    """verl's name of one rank's weights."""
    return f"model_world_size_{world_size}_rank_{rank}.pt"


def ranks_by_world_size(names: Iterable[str]) -> dict[int, set[int]]:
    """The shards among some file names: the ranks that are there, by world size."""
    found: dict[int, set[int]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        if match:
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    return found


def settle_world_size(names: Iterable[str], config: bytes | None) -> tuple[int, list[str]]:
    """How many shards make up the model, and every reason why they cannot be merged.

    Args:
        names: the files of the checkpoint's actor folder.
        config: the content of verl's fsdp_config.json, None where there is none.

    Returns:
        The world size (0 if it cannot be told), and one line a problem: no shards, a rank that is missing, several
        world sizes without a config to choose by.
    """
    found = ranks_by_world_size(names)
    if not found:
        return 0, ["there is no model_world_size_*_rank_*.pt: only checkpoints of verl's FSDP trainer can be converted"]
    if config is not None:
        try:
            world_size = int(json.loads(config)["world_size"])
        except (ValueError, KeyError, TypeError) as error:
            return 0, [f"{CONFIG_FILE} does not say the world size: {type(error).__name__}: {error}"]
    elif len(found) == 1:
        (world_size,) = found
    else:
        return 0, [
            f"shards of world sizes {sorted(found)} and no {CONFIG_FILE} that says which of them belong together"
        ]
    missing = sorted(set(range(world_size)) - found.get(world_size, set()))
    return world_size, [f"{shard_name(world_size, rank)} is missing (world size {world_size})" for rank in missing]


ACTOR_FOLDER = "actor"
RESTORE = (
    "convert another step, or bring the missing files back (where every rank saved to a disk of its own, give the "
    "checkpoint's URL in the object store)"
)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the weights come from, as far as the run directory around the checkpoint tells."""

    checkpoint: str
    step: int | None = None
    run_id: str | None = None
    attempt: int | None = None
    spec_hash: str | None = None
    model_path: str | None = None
    model_revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint that was found: its folder as a store, and where in it the actor's files are (`actor/` or here)."""

    store: Store
    prefix: str
    manifest: Manifest | None
    origin: Origin


def find_source(checkpoint: str, reporter: Reporter) -> Source:
    """The checkpoint behind a path or store URL, with or without the trailing /actor.

    Raises:
        ConvertError: there is none.
        IncompleteCheckpoint: it was never finished, or its seal does not hold.
        StoreError: the store cannot be asked.
    """
    store, prefix = _locate(checkpoint)
    name = store.url.rpartition("/")[2]
    run = _run_around(store.url)
    record = run.get_json(RUN_FILE) if run is not None else None
    manifest = _read_seal(store, in_run_directory=record is not None)
    if manifest is None:
        reporter.warn(
            f"{store.url} has no {MANIFEST_FILE}: its files cannot be verified, only that no shard is missing"
        )
    if manifest is not None and record is not None and record.get("spec_hash") != manifest.spec_hash:
        reporter.warn(f"{store.url} was not saved by the run around it: {RUN_FILE} has another spec hash")
        run = record = None
    spec = run.get_json(SPEC_FILE) if run is not None and record is not None else None
    model: Mapping[str, Any] = (spec or {}).get("model") or {}
    origin = Origin(
        checkpoint=store.url,
        step=manifest.step if manifest is not None else step_of(name),
        run_id=record.get("run_id") if record is not None else None,
        attempt=manifest.attempt if manifest is not None else None,
        spec_hash=manifest.spec_hash if manifest is not None else None,
        model_path=model.get("path"),
        model_revision=model.get("revision"),
    )
    return Source(store=store, prefix=prefix, manifest=manifest, origin=origin)


def _locate(checkpoint: str) -> tuple[Store, str]:
    """The store of the step's folder and the prefix of the actor's files in it."""
    is_url = "://" in checkpoint and not checkpoint.startswith("file://")
    url = checkpoint.rstrip("/") if is_url else os.path.abspath(checkpoint.removeprefix("file://"))
    step_url = url.removesuffix(f"/{ACTOR_FOLDER}")
    store = open_store(step_url)
    children = store.children("")
    if ACTOR_FOLDER in children or not {COMPLETE_FILE, MANIFEST_FILE}.isdisjoint(children):
        return store, f"{ACTOR_FOLDER}/"  # a sealed checkpoint that lacks its actor is named as one, file by file
    if ranks_by_world_size(children):
        return store, ""
    steps = _steps_below(store, children)
    if steps:
        raise ConvertError(f"{step_url} holds checkpoints, name one of them: {', '.join(steps)}")
    what = "is empty or does not exist" if not children else f"holds neither {ACTOR_FOLDER}/ nor model_world_size_*.pt"
    raise ConvertError(
        f"there is no checkpoint at {url}: {step_url} {what}; expected .../global_step_N or .../global_step_N/actor"
    )


def _steps_below(store: Store, children: list[str]) -> list[str]:
    """The checkpoints of a run directory, or of its checkpoints folder, in the order of their steps."""
    below = CHECKPOINTS_FOLDER if CHECKPOINTS_FOLDER in children else ""
    found = store.children(below) if below else children
    steps = {name: step for name in found if (step := step_of(name)) is not None}
    return [f"{below}/{name}" if below else name for name in sorted(steps, key=lambda name: steps[name])]


def _run_around(step_url: str) -> Store | None:
    """The run directory that a step's folder lies in, None where the folder lies elsewhere."""
    parent = step_url.rpartition("/")[0]
    root, _, folder = parent.rpartition("/")
    return open_store(root) if folder == CHECKPOINTS_FOLDER and root else None


def _read_seal(store: Store, *, in_run_directory: bool) -> Manifest | None:
    """The manifest of a sealed checkpoint, None for one that plain verl saved outside a run directory."""
    has = {name: store.exists(name) for name in (COMPLETE_FILE, MANIFEST_FILE)}
    if not any(has.values()) and not in_run_directory:
        return None
    if not has[COMPLETE_FILE]:
        raise incomplete(
            store.url,
            [f"it has no {COMPLETE_FILE}: saving it was never finished, or it is being deleted"],
            "convert another step, or wait until the run has saved this one",
        )
    try:
        manifest = open_sealed(store.get(MANIFEST_FILE), store.get(COMPLETE_FILE))
    except FileNotFoundError:
        raise incomplete(store.url, [f"it has {COMPLETE_FILE} but no {MANIFEST_FILE}"], RESTORE) from None
    except (CorruptRecord, CheckpointError) as error:
        raise incomplete(store.url, [f"its seal does not hold: {error}"], RESTORE) from error
    step = step_of(store.url.rpartition("/")[2])
    if step not in (None, manifest.step):
        raise incomplete(store.url, [f"its {MANIFEST_FILE} is of step {manifest.step}"], RESTORE)
    return manifest


@dataclass(frozen=True, kw_only=True)
class LocalShards:
    """Files on this machine that may be loaded: the shards, and a folder with config and tokenizer and nothing else."""

    actor_dir: Path
    huggingface_dir: Path
    world_size: int


def bring_here(source: Source, scratch: Path, reporter: Reporter) -> LocalShards:
    """Verify what the merger will read, after a download into `scratch` where the checkpoint is in a remote store.

    Files that are not read here (optimizer, data position) need only be there in the size that the manifest says.

    Raises:
        IncompleteCheckpoint: with every file that is missing or not as the manifest says; nothing was loaded.
    """
    sizes = {info.key: info.size for info in source.store.list(source.prefix if source.manifest is None else "")}
    listed = sizes if source.manifest is None else {entry.path: entry.size for entry in source.manifest.files}
    names = [path.removeprefix(source.prefix) for path in listed if path.startswith(source.prefix)]
    config = source.store.get(source.prefix + CONFIG_FILE) if source.prefix + CONFIG_FILE in sizes else None
    world_size, problems = settle_world_size(names, config)
    problems += [problem for path, size in listed.items() if (problem := _size_problem(path, size, sizes))]
    if f"{HUGGINGFACE_FOLDER}/config.json" not in names:
        problems.append(f"{source.prefix}{HUGGINGFACE_FOLDER}/config.json is missing")
    if problems:
        raise incomplete(source.store.url, dict.fromkeys(problems), RESTORE)
    _say_what_is_left_aside(source, names, sizes, world_size, reporter)
    hashes = {entry.path: entry.sha256 for entry in source.manifest.files} if source.manifest is not None else {}
    needed = [
        ListedFile(path=path, size=listed[path], sha256=hashes.get(path))
        for path in (source.prefix + name for name in names if _is_read(name, world_size))
    ]
    folder = source.store.local_path("")
    broken = _verify(source, needed, folder, reporter) if folder else _download(source, needed, scratch, reporter)
    if broken:
        raise incomplete(source.store.url, broken.values(), RESTORE)
    if folder:
        _copy(folder, scratch, [file.path for file in needed if _is_companion(file.path.removeprefix(source.prefix))])
    return LocalShards(
        actor_dir=(folder or scratch) / source.prefix,
        huggingface_dir=scratch / source.prefix / HUGGINGFACE_FOLDER,
        world_size=world_size,
    )


def _say_what_is_left_aside(
    source: Source, names: list[str], sizes: Mapping[str, int], world_size: int, reporter: Reporter
) -> None:
    others = sorted(set(ranks_by_world_size(names)) - {world_size})
    if others:
        reporter.warn(f"shards of world sizes {others} are left aside: {CONFIG_FILE} says {world_size}")
    here = {path.removeprefix(source.prefix) for path in sizes if path.startswith(source.prefix)}
    unlisted = sorted(name for name in here - set(names) if _is_companion(name))
    if unlisted:
        reporter.warn(f"{len(unlisted)} files that the manifest does not list are left aside: {', '.join(unlisted)}")


def _copy(folder: Path, scratch: Path, paths: list[str]) -> None:
    """The small files, so that a loader that is given their folder finds no others in it."""
    for path in paths:
        (scratch / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / path, scratch / path)


def _size_problem(path: str, size: int, sizes: Mapping[str, int]) -> str | None:
    if path not in sizes:
        return f"{path} is missing"
    return f"{path} has {sizes[path]} bytes, the manifest says {size}" if sizes[path] != size else None


def _is_read(name: str, world_size: int) -> bool:
    """Whether the conversion reads this file of the actor's folder."""
    if _is_companion(name) or name in (CONFIG_FILE, LORA_FILE):
        return True
    return name in {shard_name(world_size, rank) for rank in range(world_size)}


def _is_companion(name: str) -> bool:
    """Config, tokenizer, custom code; not weights that the trainer may have saved beside them in its own dtype."""
    return name.startswith(f"{HUGGINGFACE_FOLDER}/") and not name.endswith((".safetensors", ".bin", ".index.json"))


def _verify(source: Source, needed: list[ListedFile], folder: Path, reporter: Reporter) -> dict[ListedFile, str]:
    """Local files against the manifest; without one there is nothing to compare with."""
    if source.manifest is None:
        return {}
    reporter.say(f"verifying {len(needed)} files of {source.store.url}")
    with reporter.bar("sha256", sum(file.size for file in needed), in_bytes=True) as advance:
        return find_problems(folder, needed, on_done=lambda file: advance(file.size))


def _download(source: Source, needed: list[ListedFile], scratch: Path, reporter: Reporter) -> dict[ListedFile, str]:
    """Files of a remote store into `scratch`, each verified as soon as it is here."""
    reporter.say(f"downloading {len(needed)} files of {source.store.url}")
    with reporter.bar("download and sha256", sum(file.size for file in needed), in_bytes=True) as advance:
        return bring(source.store, needed, scratch, on_done=lambda file: advance(file.size))
