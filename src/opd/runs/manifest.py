"""The manifest of a checkpoint: every file's size and sha256, and the marker that seals it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from opd.errors import CheckpointError, CorruptRecord, UnsafePath
from opd.store.transfer import ListedFile

CHECKPOINTS_FOLDER = "checkpoints"
MANIFEST_FILE = "manifest.json"
COMPLETE_FILE = "COMPLETE"
# Rises with a field's meaning; a reader rejects an unknown version.
MANIFEST_VERSION = 1
# The rank of files that the driver saves itself (data.pt).
DRIVER_RANK = -1
DATA_FILE = "data.pt"
# Files that verl's FSDP engine saves for each rank; a resume loads all of them.
RANK_PARTS = ("model", "optim", "extra_state")
_STEP_FOLDER = re.compile(r"global_step_([0-9]{1,18})")
_RANK_FILE = re.compile(r"_rank_(\d+)\.")
_SHARD = re.compile(r"actor/[a-z_]+_world_size_(\d{1,7})_rank_\d+\.pt")
_NUM_NAMED = 4
_LONGEST_NAME = 255


@dataclass(frozen=True, kw_only=True)
class FileEntry(ListedFile):
    """One file of a step, with the `rank` that saved it."""

    sha256: str
    rank: int

    def __post_init__(self) -> None:
        _check_types(self, path=str, size=int, sha256=str, rank=int)
        parts = PurePosixPath(self.path).parts
        leaves = self.path.startswith("/") or ".." in parts or "\\" in self.path or "\0" in self.path
        if not parts or leaves or "/".join(parts) != self.path:
            raise UnsafePath(f"manifest path {self.path!r}: must be relative, normal and inside its checkpoint folder")
        # JSON's "\ud800" is half a character, which UTF-8 cannot hold.
        encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
        if max(map(len, encoded)) > _LONGEST_NAME or any("\ud800" <= letter <= "\udfff" for letter in self.path):
            raise UnsafePath(f"manifest path {self.path[:80]!r}: no file system takes it")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of manifest.json: the whole checkpoint of one step, as one attempt saved it."""

    step: int
    attempt: int
    spec_hash: str
    files: tuple[FileEntry, ...]

    def __post_init__(self) -> None:
        _check_types(self, step=int, attempt=int, spec_hash=str)
        paths = [entry.path for entry in self.files]
        doubled = sorted({path for path in paths if paths.count(path) > 1})
        if not paths or doubled:
            problem = f"files listed twice: {', '.join(doubled)}" if doubled else "no files"
            raise CheckpointError(f"manifest of global_step_{self.step}: {problem}")

    def to_bytes(self) -> bytes:
        record = {"version": MANIFEST_VERSION, **dataclasses.asdict(self)}
        return (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read a manifest; raise CorruptRecord for any other content, UnsafePath for a path that leaves its folder."""
        try:
            record: dict[str, Any] = json.loads(data)
            if record.pop("version") != MANIFEST_VERSION:
                raise CorruptRecord(f"manifest version is not {MANIFEST_VERSION}")
            files = tuple(FileEntry(**entry) for entry in record.pop("files"))
            return cls(files=files, **record)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptRecord(f"not a manifest: {type(error).__name__}: {error}") from error

    def seal(self) -> bytes:
        """Return the content of COMPLETE, which binds it to exactly this manifest."""
        record = {"manifest_sha256": hashlib.sha256(self.to_bytes()).hexdigest(), "step": self.step}
        return (json.dumps(record, sort_keys=True) + "\n").encode()

    def files_of(self, ranks: Sequence[int] | None) -> list[FileEntry]:
        """Return the entries of the given ranks, all entries for None."""
        return [entry for entry in self.files if ranks is None or entry.rank in ranks]

    def find_gaps(self) -> list[str]:
        """Return why no resume could load this checkpoint even if every file is as listed.

        A resume needs each rank's weights, optimizer and extra state, listed under that rank, and the place in the data.
        """
        listed = {entry.path for entry in self.files}
        sizes = {int(match[1]) for path in listed if (match := _SHARD.fullmatch(path))}
        if len(sizes) != 1:
            found = " and ".join(map(str, sorted(sizes))) or "no"
            return [f"it lists shards saved by {found} ranks, expected one number"]
        num_ranks = sizes.pop()
        # A name may claim any number of ranks; as many as there are files suffice to name a missing part.
        ranks = range(min(num_ranks, len(listed) + 1))
        needed = [f"actor/{part}_world_size_{num_ranks}_rank_{rank}.pt" for rank in ranks for part in RANK_PARTS]
        missing = [path for path in [DATA_FILE, *needed] if path not in listed]
        gaps = [f"it lists no {path}" for path in missing[:_NUM_NAMED]]
        if len(missing) > _NUM_NAMED:
            gaps.append(f"nor {len(missing) - _NUM_NAMED} other files that a resume loads")
        strays = [entry for entry in self.files if entry.rank != _owner(entry.path)]
        return gaps + [f"{stray.path} is listed under rank {stray.rank}" for stray in strays[:_NUM_NAMED]]


def open_sealed(manifest_data: bytes, complete_data: bytes) -> Manifest:
    """Return the manifest; raise CorruptRecord if it is unreadable or COMPLETE was not written for it."""
    manifest = Manifest.from_bytes(manifest_data)
    if complete_data != manifest.seal() or manifest.to_bytes() != manifest_data:
        raise CorruptRecord("COMPLETE was not written for this manifest.json")
    return manifest


def step_folder(step: int) -> str:
    return f"{CHECKPOINTS_FOLDER}/global_step_{step}"


def step_of(name: str) -> int | None:
    """Return the step of a folder name, None for other names."""
    match = _STEP_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def files_of_rank(step_dir: Path, rank: int) -> list[str]:
    """Return the files of a freshly saved step that one rank answers for, by verl's names, sorted.

    A shard belongs to the rank in its name, data.pt and other files at the top to the driver (DRIVER_RANK). Rank 0 saves
    the rest of the sub-folders (configs, tokenizer).
    """
    sealing = (MANIFEST_FILE, COMPLETE_FILE)
    return [path for path in visible_files(step_dir) if path not in sealing and _owner(path) == rank]


def visible_files(folder: Path) -> list[str]:
    """Return every file below a folder except hidden files, relative with `/`, sorted."""
    found = []
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [(Path(parent) / name).relative_to(folder).as_posix() for name in names if not name.startswith(".")]
    return sorted(found)


def _check_types(record: Any, **types: type) -> None:
    for name, expected in types.items():
        if type(getattr(record, name)) is not expected:
            raise TypeError(f"{name} {getattr(record, name)!r}: expected {expected.__name__}")


def _owner(path: str) -> int:
    if "/" not in path:
        return DRIVER_RANK
    match = _RANK_FILE.search(path.rpartition("/")[2])
    return int(match[1]) if match else 0
