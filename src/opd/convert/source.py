"""The checkpoint to convert: its place, its seal, its run's records, and its verified files."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opd.convert.errors import ConvertError, Warnings, incomplete, say
from opd.errors import CheckpointError, CorruptRecord
from opd.runs.headline import validation_scores
from opd.runs.identity import RUN_FILE, SPEC_FILE
from opd.runs.manifest import CHECKPOINTS_FOLDER, COMPLETE_FILE, MANIFEST_FILE, Manifest, open_sealed, step_of
from opd.runs.metrics import read_metrics
from opd.store.base import Store
from opd.store.remote import open_store
from opd.store.transfer import ListedFile, bring, find_problems

ACTOR = "actor/"
CONFIG_FILE = f"{ACTOR}fsdp_config.json"
LORA_FILE = "lora_train_meta.json"
HUGGINGFACE = f"{ACTOR}huggingface/"
RESTORE = (
    "convert another step, or bring the missing files back. Where every rank saved to a disk of its own, give the "
    "checkpoint's URL in the object store"
)


def shard_name(world_size: int, rank: int) -> str:
    """Return verl's name of one rank's weights."""
    return f"model_world_size_{world_size}_rank_{rank}.pt"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The weights' origin, as far as the checkpoint and the run directory around it name it."""

    checkpoint: str
    step: int | None
    run_id: str | None = None
    attempt: int | None = None
    spec_hash: str | None = None
    manifest_sha256: str | None = None
    model_path: str | None = None
    model_revision: str | None = None
    kind: str | None = None
    teachers: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    validation_step: int | None = None
    validation: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint that was found: its step's folder as a store, and its files as listed by the manifest, if there is one."""

    store: Store
    files: tuple[ListedFile, ...]
    origin: Origin


def find_source(checkpoint: str, warnings: Warnings) -> Source:
    """Return the checkpoint at a path or store URL, with or without the trailing /actor.

    Raises:
        ConvertError: there is none.
        CheckpointError: it was never finished, or its seal does not hold.
        StoreError: the store cannot be reached.
    """
    url = checkpoint.rstrip("/").removesuffix("/actor")
    store = open_store(url if "://" in url else os.path.abspath(url))
    children = set(store.children(""))
    if not children & {"actor", COMPLETE_FILE, MANIFEST_FILE}:
        content = ", ".join(sorted(children)[:10]) or "nothing, or it does not exist"
        raise ConvertError(
            f"there is no checkpoint at {store.url}, which holds {content}; name .../global_step_N or .../global_step_N/actor"
        )
    parent, _, name = store.url.rpartition("/")
    root, _, folder = parent.rpartition("/")
    run = open_store(root) if folder == CHECKPOINTS_FOLDER and root else None
    record = (run.get_json(RUN_FILE) if run is not None else None) or {}
    manifest = _read_seal(store, children, in_run_directory=bool(record))
    if manifest is None:
        warnings.add(f"{store.url} has no {MANIFEST_FILE}: its files cannot be verified, only that no shard is missing")
        files = tuple(ListedFile(path=info.key, size=info.size, sha256=None) for info in store.list(""))
        return Source(store=store, files=files, origin=Origin(checkpoint=store.url, step=step_of(name)))
    spec: dict[str, Any] = {}
    if run is not None and record.get("spec_hash") == manifest.spec_hash:
        spec = run.get_json(SPEC_FILE) or {}
    model = spec.get("model") or {}
    validation_step, validation = _last_validation(run, manifest.step) if run is not None and spec else (None, {})
    teachers = [spec.get("teacher"), *(spec.get("teachers") or {}).values()]
    origin = Origin(
        checkpoint=store.url,
        step=manifest.step,
        run_id=record.get("run_id") if spec else None,
        attempt=manifest.attempt,
        spec_hash=manifest.spec_hash,
        manifest_sha256=hashlib.sha256(manifest.to_bytes()).hexdigest(),
        model_path=model.get("path"),
        model_revision=model.get("revision"),
        kind=spec.get("kind"),
        teachers=tuple(teacher["path"] for teacher in teachers if teacher),
        data=tuple((spec.get("data") or {}).get("train", ())),
        validation_step=validation_step,
        validation=validation,
    )
    return Source(store=store, files=manifest.files, origin=origin)


def _last_validation(run: Store, step: int) -> tuple[int | None, dict[str, float]]:
    """Return step and scores of the last validation up to a step."""
    for row in reversed(read_metrics([run])):
        if row["step"] <= step and (scores := validation_scores(row)):
            return row["step"], {name: value for name, value in scores.items() if math.isfinite(value)}
    return None, {}


def _read_seal(store: Store, children: set[str], *, in_run_directory: bool) -> Manifest | None:
    """Return the manifest of a sealed checkpoint, None for one that plain verl saved outside a run directory."""
    if COMPLETE_FILE not in children:
        if MANIFEST_FILE not in children and not in_run_directory:
            return None
        raise incomplete(
            store.url,
            [f"it has no {COMPLETE_FILE}: saving it was never finished, or it is being deleted"],
            "convert another step, or wait until the run has saved this one",
        )
    try:
        return open_sealed(store.get(MANIFEST_FILE), store.get(COMPLETE_FILE))
    except (FileNotFoundError, CorruptRecord, CheckpointError) as error:
        raise incomplete(store.url, [f"its seal does not hold: {error}"], RESTORE) from error


def bring_here(source: Source, scratch: Path) -> tuple[Path, Path, int]:
    """Verify the files that the merger will read, after a download into `scratch` from a remote store.

    Files that are not read here (optimizer, data position) need only be there in the size that the manifest says.

    Returns:
        The folder of the shards, a folder with the listed configs and tokenizers alone, and the number of shards.

    Raises:
        CheckpointError: with every file that is missing or not as the manifest says; nothing was loaded.
    """
    store, listed = source.store, {file.path: file for file in source.files}
    sizes = {info.key: info.size for info in store.list("")}
    world_size, problems = _world_size(store, sizes)
    shards = [f"{ACTOR}{shard_name(world_size, rank)}" for rank in range(world_size)]
    wanted = dict.fromkeys([*listed, *shards, f"{HUGGINGFACE}config.json"])
    problems += [f"{path} is missing" for path in wanted if path not in sizes or path not in listed]
    problems += [
        f"{file.path} has {sizes[file.path]} bytes, the manifest says {file.size}"
        for file in source.files
        if sizes.get(file.path, file.size) != file.size
    ]
    if problems:
        raise incomplete(store.url, problems, RESTORE)
    # Not weights that the trainer may have saved next to the tokenizer in its own dtype.
    weights, saved = (".safetensors", ".bin", ".index.json"), source.files
    companions = [file for file in saved if file.path.startswith(HUGGINGFACE) and not file.path.endswith(weights)]
    needed = [file for path, file in listed.items() if path in {*shards, ACTOR + LORA_FILE}]
    say(f"verifying {len(needed + companions)} files of {store.url}")
    folder = store.local_path("")
    # Companions are copied, so that a loader that is given their folder finds no others in it.
    broken = bring(store, companions if folder else companions + needed, scratch)
    if folder:
        broken |= find_problems(folder, needed)
    if broken:
        raise incomplete(store.url, broken.values(), RESTORE)
    return (folder or scratch) / ACTOR, scratch / HUGGINGFACE, world_size


def _world_size(store: Store, sizes: dict[str, int]) -> tuple[int, list[str]]:
    """Return the number of shards that make up the model, 0 with the reason if verl's config does not say it."""
    if CONFIG_FILE not in sizes:
        return 0, [f"{CONFIG_FILE} is missing: only checkpoints of verl's FSDP trainer can be converted"]
    try:
        return int(json.loads(store.get(CONFIG_FILE))["world_size"]), []
    except (ValueError, KeyError, TypeError) as error:
        return 0, [f"{CONFIG_FILE} does not say the world size: {type(error).__name__}: {error}"]
