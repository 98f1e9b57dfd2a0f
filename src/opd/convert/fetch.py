"""The files of a checkpoint that a conversion reads: verified against the manifest, downloaded first where they are remote."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opd.convert.errors import incomplete
from opd.convert.reporter import Reporter
from opd.convert.source import (
    CONFIG_FILE,
    HUGGINGFACE_FOLDER,
    LORA_FILE,
    RESTORE,
    Source,
    ranks_by_world_size,
    settle_world_size,
    shard_name,
)
from opd.store.transfer import ListedFile, bring, find_problems


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
