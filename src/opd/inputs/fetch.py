"""Fetching of what a run reads from a store URL (models, teachers, data sets), once into a local cache, and verified.

A folder of the cache mirrors one URL. `.opd-fetched.json` in it names the version of each object that it holds. So a later
start downloads only what is missing or has changed, and an interrupted start continues file by file.
What the cache holds is hashed again at every start: a bit that has flipped on the disk is noticed, and the file fetched anew.
"""

import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from opd.errors import CorruptRecord, NoBucket, RunError
from opd.experiment.errors import Problem, SpecError
from opd.experiment.types import HUB
from opd.store.access import is_store_url
from opd.store.base import ObjectInfo, Store
from opd.store.durable import hash_file
from opd.store.local import LocalStore
from opd.store.remote import open_store
from opd.store.transfer import ListedFile, find_problems, in_threads

CACHE_VARIABLE = "OPD_CACHE_DIR"
RECORD_FILE = ".opd-fetched.json"
# A part that no process has written to for that long belongs to a process that was killed.
STALE_PART_S = 3600.0
_GIB = 2**30
_HUB_FIX = (
    "{path: OWNER/NAME, split: train}, with `name` for one of several configurations, or `HF_TOKEN` where it is gated"
)


class FetchError(RunError):
    """An object or folder at a URL that cannot be used; the text says why."""


class NothingThere(FetchError):
    """The store has answered that it has nothing under a URL."""


@dataclass(frozen=True, kw_only=True)
class Fetched(ListedFile):
    """The version of one object that the cache holds."""

    modified_s: float


def cache_dir() -> Path:
    """Return the folder of fetched files: OPD_CACHE_DIR, else the user's cache."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).absolute() / "fetched"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opd" / "fetched"


def local_copy(url: str, *, cache: Path | None = None) -> str:
    """Return the local folder (or file, where the URL names one) with what the URL holds now, verified.

    Raises:
        FetchError: nothing is there, an object came in another size, or the disk is too small.
        StoreError: the store cannot be read.
    """
    url = url.rstrip("/")
    folder = (cache or cache_dir()) / _folder_name(url)
    store, listed, is_file = _listing(url)
    _update(url, store, listed, folder)
    return str(folder / listed[0].key if is_file else folder)


def local_file(key: str, path: str) -> Path:
    """Return the local copy of a store URL that a key of the spec names, and another path as it is.

    Raises:
        SpecError: there is nothing at the URL. FetchError, StoreError: as `local_copy`.
    """
    try:
        return Path(local_copy(path) if is_store_url(path) else path)
    except NothingThere as error:
        fix = "check the path and the bucket"
        raise SpecError([Problem(path=key, value=path, rule="the store has nothing there", fix=fix)]) from error


def hub_copy(key: str, url: str) -> str:
    """Return the local file with a key's data set of the hub (`opd.experiment.types.hub_url`), by the `datasets` library.

    Raises:
        SpecError: the hub has no such data set or split, or the set has several. FetchError: it cannot be reached.
    """
    import datasets

    path, _, query = url.removeprefix(HUB).partition("?")
    file = cache_dir() / _folder_name(url) / f"{path.rstrip('/').rpartition('/')[2]}.parquet"
    try:
        found = datasets.load_dataset(path, **dict(parse_qsl(query)))
    except (FileNotFoundError, ValueError) as error:  # the library's own errors are of these kinds
        problem = Problem(path=key, value=url, rule=f"the data set cannot be read: {error}", fix=_HUB_FIX)
        raise SpecError([problem]) from error
    except Exception as error:  # the stores' clients raise many types
        raise FetchError(f"{key}: {url} cannot be fetched: {type(error).__name__}: {error}") from error
    if isinstance(found, dict):
        raise SpecError([Problem(path=key, value=url, rule=f"it has the splits {', '.join(found)}", fix=_HUB_FIX)])
    file.parent.mkdir(parents=True, exist_ok=True)
    found.to_parquet(file)
    return str(file)


def mirror(url: str, folder: Path) -> int:
    """Make a folder hold what the URL holds now, as `local_copy` does; return the number of files that the URL names."""
    url = url.rstrip("/")
    store, listed, _ = _listing(url)
    _update(url, store, listed, folder)
    return len(listed)


def _listing(url: str) -> tuple[Store, list[ObjectInfo], bool]:
    """Return the store that the URL's objects are read from, the objects, and whether the URL names a single one."""
    store = open_store(url)
    nothing = NothingThere(f"{url}: there is nothing; check the path and the bucket")
    try:
        found = store.list("")
    except NoBucket as error:
        raise nothing from error
    if len(found) == 1 and not found[0].key:
        parent, _, name = url.rpartition("/")
        return open_store(parent), [ObjectInfo(key=name, size=found[0].size, modified_s=found[0].modified_s)], True
    listed = [info for info in found if info.key]
    if not listed:
        raise nothing
    if outside := [info.key for info in listed if info.key[0] == "/" or ".." in info.key.split("/")]:
        raise FetchError(f"{url}: object names that lead out of the folder: {', '.join(outside)}")
    return store, listed, False


def _folder_name(url: str) -> str:
    """Return a readable name, its own for each URL."""
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", url.rpartition("/")[2])[:60]
    return f"{label}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


def _update(url: str, store: Store, listed: Sequence[ObjectInfo], folder: Path) -> None:
    """Make the folder hold exactly the listed objects of the URL."""
    recorded = _recorded(folder, url)
    now = {info.key: (info.size, info.modified_s) for info in listed}
    held = {key: one for key, one in recorded.items() if now.get(key) == (one.size, one.modified_s)}
    for file, problem in find_problems(folder, [*held.values()]).items():
        print(f"{folder}: {problem} of {url}: fetching it anew", flush=True)
        del held[file.path]
    if missing := [info for info in listed if info.key not in held]:
        folder.mkdir(parents=True, exist_ok=True)
        _make_room(url, folder, sum(info.size for info in missing))
        _download(url, store, missing, folder, held)
    for key in recorded.keys() - now.keys():
        (folder / key).unlink(missing_ok=True)
    if held != recorded:
        _write(folder, url, held)


def _download(url: str, store: Store, missing: Sequence[ObjectInfo], folder: Path, held: dict[str, Fetched]) -> None:
    """Fetch the missing objects; each file is recorded in `held` and on the disk as soon as it is verified."""
    lock, num_bytes, arrived = threading.Lock(), sum(info.size for info in missing), 0

    def one(info: ObjectInfo) -> None:
        nonlocal arrived
        path = folder / info.key
        store.get_file(info.key, path)
        size, sha256 = hash_file(path)
        if size != info.size:
            path.unlink()
            rule = f"{info.key} came with {size} bytes, and not with {info.size}"
            raise FetchError(f"{url}: {rule}: start again, or upload it again if it is damaged there")
        with lock:
            held[info.key] = Fetched(path=info.key, size=size, modified_s=info.modified_s, sha256=sha256)
            _write(folder, url, held)
            arrived += size
            if num_bytes > _GIB:
                print(f"fetching {url}: {arrived / _GIB:.1f} of {num_bytes / _GIB:.1f} GiB", flush=True)

    in_threads(one, missing)
    print(f"fetched {url}: {len(missing)} files in {folder}", flush=True)


def _make_room(url: str, folder: Path, needed: int) -> None:
    """Delete parts of files that a killed process left, and raise FetchError if the disk is too small."""
    for part in folder.rglob(".*.part-*"):
        with suppress(FileNotFoundError):  # another start's, which is complete and renamed by now
            if time.time() - part.stat().st_mtime > STALE_PART_S:
                part.unlink()
    if needed > (free := shutil.disk_usage(folder).free):
        rule = f"{url} needs {needed / _GIB:.1f} GiB, and {folder} has {free / _GIB:.1f} GiB free"
        raise FetchError(f"{rule}: make room, or set {CACHE_VARIABLE} to another disk")


def _recorded(folder: Path, url: str) -> dict[str, Fetched]:
    try:
        record = LocalStore(folder).get_json(RECORD_FILE) or {"files": {}}
        return {key: Fetched(**entry) for key, entry in record["files"].items()}
    except (CorruptRecord, KeyError, TypeError, AttributeError) as error:
        print(f"{folder / RECORD_FILE} is damaged ({error}): fetching {url} anew", flush=True)
        return {}


def _write(folder: Path, url: str, held: Mapping[str, Fetched]) -> None:
    files = {key: asdict(entry) for key, entry in held.items()}
    LocalStore(folder).put_json(RECORD_FILE, {"url": url, "files": files})
