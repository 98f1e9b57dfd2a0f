"""The files of a checkpoint that a conversion reads: verified against the manifest, downloaded first where they are remote."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from opd.convert.errors import incomplete
from opd.convert.reporter import Reporter
from opd.convert.shards import CONFIG_FILE, HUGGINGFACE_FOLDER, ranks_by_world_size, settle_world_size, shard_name
from opd.convert.source import RESTORE, Source
from opd.runs.manifest import FileEntry, find_problem
from opd.runs.shards import NUM_TRANSFER_THREADS


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
    needed = {
        path: listed[path]
        for path in (source.prefix + name for name in names)
        if _is_read(path.removeprefix(source.prefix), world_size)
    }
    folder = source.store.local_path("")
    problems = _verify(source, needed, folder, reporter) if folder else _download(source, needed, scratch, reporter)
    if problems:
        raise incomplete(source.store.url, problems, RESTORE)
    if folder:
        _copy(folder, scratch, [path for path in needed if _is_companion(path.removeprefix(source.prefix))])
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
    if _is_companion(name) or name == CONFIG_FILE:
        return True
    return name in {shard_name(world_size, rank) for rank in range(world_size)}


def _is_companion(name: str) -> bool:
    """Config, tokenizer, custom code; not weights that the trainer may have saved beside them in its own dtype."""
    return name.startswith(f"{HUGGINGFACE_FOLDER}/") and not name.endswith((".safetensors", ".bin", ".index.json"))


def _verify(source: Source, needed: Mapping[str, int], folder: Path, reporter: Reporter) -> list[str]:
    """Hashes of local files against the manifest; without one there is nothing to compare with."""
    if source.manifest is None:
        return []
    entries = [entry for entry in source.manifest.files if entry.path in needed]
    reporter.say(f"verifying {len(entries)} files of {source.store.url}")

    def check(entry: FileEntry) -> str | None:
        problem = find_problem(folder, entry)
        advance(entry.size)
        return problem

    with (
        reporter.bar("sha256", sum(needed.values()), in_bytes=True) as advance,
        ThreadPoolExecutor(NUM_TRANSFER_THREADS) as pool,
    ):
        return [problem for problem in pool.map(check, entries) if problem]


def _download(source: Source, needed: Mapping[str, int], scratch: Path, reporter: Reporter) -> list[str]:
    """Files of a remote store into `scratch`, each verified as soon as it is here."""
    reporter.say(f"downloading {len(needed)} files of {source.store.url}")
    entries = {entry.path: entry for entry in source.manifest.files} if source.manifest is not None else {}

    def fetch(path: str) -> str | None:
        try:
            source.store.get_file(path, scratch / path)
        except FileNotFoundError:
            return f"{path} is missing"
        advance(needed[path])
        return find_problem(scratch, entries[path]) if path in entries else None

    with (
        reporter.bar("download and sha256", sum(needed.values()), in_bytes=True) as advance,
        ThreadPoolExecutor(NUM_TRANSFER_THREADS) as pool,
    ):
        return [problem for problem in pool.map(fetch, needed) if problem]
