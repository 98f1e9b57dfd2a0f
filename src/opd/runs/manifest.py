"""The manifest of a checkpoint: every file's size and sha256, the marker that seals it, and the sealed steps in a place."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from opd.errors import CheckpointError, CorruptRecord
from opd.store.base import Store, json_bytes
from opd.store.local import LocalStore
from opd.store.transfer import ListedFile

CHECKPOINTS_FOLDER = "checkpoints"
MANIFEST_FILE = "manifest.json"
COMPLETE_FILE = "COMPLETE"
# The rank of files that the driver saves itself (data.pt).
DRIVER_RANK = -1
DATA_FILE = "data.pt"
STAGING = ".saving-"  # prefix of the hidden folder, next to the sealed steps, of an attempt's unsealed ones
# Files that verl's FSDP engine saves for each rank; a resume loads all of them.
RANK_PARTS = ("model", "optim", "extra_state")
_STEP_FOLDER = re.compile(r"global_step_([0-9]{1,18})")
_RANK_FILE = re.compile(r"_rank_(\d+)\.")
_SHARD = re.compile(r"actor/[a-z_]+_world_size_(\d{1,7})_rank_\d+\.pt")
_NUM_NAMED = 4
_EXACTLY = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, kw_only=True, config=_EXACTLY)
class FileEntry(ListedFile):
    """One file of a step, with the `rank` that saved it."""

    sha256: str
    rank: int

    def __post_init__(self) -> None:
        # JSON's "\ud800" is half a character, which UTF-8 cannot hold; it is not printable.
        is_text = self.path.isprintable() and "\\" not in self.path
        if not is_text or any(part in ("", ".", "..") or len(part.encode()) > 255 for part in self.path.split("/")):
            rule = "must be relative, normal, inside its checkpoint folder, and of names that a file system takes"
            raise CheckpointError(f"manifest path {self.path[:80]!r}: {rule}")


@dataclass(frozen=True, kw_only=True, config=_EXACTLY)
class Manifest:
    """The content of manifest.json: the whole checkpoint of one step, as one attempt saved it."""

    step: int
    attempt: int
    spec_hash: str
    files: tuple[FileEntry, ...]

    def to_bytes(self) -> bytes:
        return json_bytes(dataclasses.asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Read a manifest; raise CorruptRecord for any other content, CheckpointError for a path that leaves its folder."""
        try:
            return TypeAdapter(cls).validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise CorruptRecord(f"not a manifest: {first['msg']}, at {place or 'the top'}") from error

    def seal(self) -> bytes:
        """Return the content of COMPLETE, which binds it to exactly this manifest."""
        record = {"manifest_sha256": hashlib.sha256(self.to_bytes()).hexdigest(), "step": self.step}
        return (json.dumps(record, sort_keys=True) + "\n").encode()

    def files_of(self, ranks: Sequence[int] | None) -> list[FileEntry]:
        """Return the entries of the given ranks, all entries for None."""
        return [entry for entry in self.files if ranks is None or entry.rank in ranks]

    def find_gaps(self) -> list[str]:
        """Return the first reasons why no resume could load this checkpoint even if every file is as listed.

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
        gaps = [f"it lists no {path}" for path in [DATA_FILE, *needed] if path not in listed]
        gaps += ["it lists a file twice"] if len(listed) < len(self.files) else []
        return gaps[:_NUM_NAMED]


def open_sealed(manifest_data: bytes, complete_data: bytes) -> Manifest:
    """Return the manifest; raise CorruptRecord if it is unreadable or COMPLETE was not written for it."""
    manifest = Manifest.from_bytes(manifest_data)
    if complete_data != manifest.seal() or manifest.to_bytes() != manifest_data:
        raise CorruptRecord(f"{COMPLETE_FILE} was not written for this {MANIFEST_FILE}")
    return manifest


def step_folder(step: int) -> str:
    return f"{CHECKPOINTS_FOLDER}/global_step_{step}"


def step_of(name: str) -> int | None:
    """Return the step of a folder name, None for other names."""
    match = _STEP_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def saved_steps(store: Store) -> list[int]:
    """Return steps that have a folder, complete or not, the newest first."""
    found = [step for name in store.children(CHECKPOINTS_FOLDER) if (step := step_of(name)) is not None]
    return sorted(found, reverse=True)


def newest_complete(store: Store) -> Iterator[int]:
    """Yield steps with a COMPLETE marker, the newest first."""
    return (step for step in saved_steps(store) if store.exists(f"{step_folder(step)}/{COMPLETE_FILE}"))


def complete_steps(stores: Sequence[Store]) -> list[int]:
    """Return steps with a COMPLETE marker in any of the places, ascending."""
    return sorted({step for store in stores for step in newest_complete(store)})


def read_sealed(store: Store, step: int) -> Manifest | None:
    """Return the manifest of a complete step, None if the step is not complete there.

    Raises:
        CorruptRecord, CheckpointError: the manifest is unreadable, or COMPLETE was not written for it.
    """
    try:
        complete = store.get(f"{step_folder(step)}/{COMPLETE_FILE}")
    except FileNotFoundError:
        return None
    try:
        data = store.get(f"{step_folder(step)}/{MANIFEST_FILE}")
    except FileNotFoundError as error:
        raise CorruptRecord(f"{COMPLETE_FILE} without {MANIFEST_FILE}") from error
    manifest = open_sealed(data, complete)
    if manifest.step != step:
        raise CorruptRecord(f"{MANIFEST_FILE} is of step {manifest.step}")
    return manifest


def read_fit(store: Store, step: int, spec_hash: str) -> Manifest | None:
    """Return the manifest as `read_sealed`; raise CheckpointError if no run of the spec hash could resume from it."""
    manifest = read_sealed(store, step)
    if manifest is not None and manifest.spec_hash != spec_hash:
        saved = f"spec hash {manifest.spec_hash}, this run has {spec_hash}"
        raise CheckpointError(f"it was saved by another experiment ({saved})")
    if manifest is not None and (gaps := manifest.find_gaps()):
        raise CheckpointError("; ".join(gaps))
    return manifest


def find_wrong_sizes(store: Store, manifest: Manifest, *, is_own_disk: bool) -> list[str]:
    """Return files that a place does not hold in the manifest's size; the driver's own disk may lack other ranks' files."""
    folder = step_folder(manifest.step)
    sizes = {info.key.removeprefix(f"{folder}/"): info.size for info in store.list(folder)}
    problems = []
    for entry in manifest.files:
        size = sizes.get(entry.path)
        if size is None and (entry.rank == DRIVER_RANK or not is_own_disk):
            problems.append(f"{entry.path} is missing")
        elif size not in (None, entry.size):
            problems.append(f"{entry.path} has {size} bytes, the manifest says {entry.size}")
    return problems


def files_of_rank(step_dir: Path, rank: int) -> list[str]:
    """Return the files of a freshly saved step that one rank answers for, by verl's names, without hidden files and the seal.

    A shard belongs to the rank in its name, a file at the top (data.pt) to the driver, the rest to rank 0.
    """
    paths = [info.key for info in LocalStore(step_dir).list("")]
    return [path for path in paths if path not in (MANIFEST_FILE, COMPLETE_FILE) and _owner(path) == rank]


def _owner(path: str) -> int:
    if "/" not in path:
        return DRIVER_RANK
    match = _RANK_FILE.search(path.rpartition("/")[2])
    return int(match[1]) if match else 0
