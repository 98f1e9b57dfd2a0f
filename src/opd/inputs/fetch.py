"""Fetches what a run reads from a store URL (models, teachers, data sets) once into a local cache, and verifies it.

A folder of the cache mirrors one URL. `.opd-fetched.json` in it names the version of each object that it holds. So a later
start downloads only what is missing or has changed, and an interrupted start continues file by file. A folder in the store may
hold `SHA256SUMS` (as `sha256sum` writes it): then every file must be listed there and match. Without it a file is compared
with the store's own MD5 where that is one, and with its size. What the cache holds is hashed again at every start: a bit that
has flipped on the disk is noticed, and the file fetched anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from opd.errors import CorruptRecord, NoBucket, RunError
from opd.experiment.errors import Problem, SpecError
from opd.experiment.types import HUB
from opd.store.access import is_store_url
from opd.store.base import ObjectInfo, Store, leads_out
from opd.store.durable import hash_file
from opd.store.local import LocalStore
from opd.store.remote import open_store
from opd.store.transfer import in_threads

CACHE_VARIABLE = "OPD_CACHE_DIR"
RECORD_FILE = ".opd-fetched.json"
CHECKSUMS_FILE = "SHA256SUMS"
PROGRESS_INTERVAL_S = 10.0
# A part that no process has written to for that long belongs to a process that was killed.
STALE_PART_S = 3600.0
_CHUNK_BYTES = 8 * 2**20
_GIB = 2**30
_HUB_FIX = (
    "{path: OWNER/NAME, split: train}, with `name` for one of several configurations, or `HF_TOKEN` where it is gated"
)

Say = Callable[[str], None]


class FetchError(RunError):
    """An object or folder at a URL that cannot be used; the text says why."""


class NothingThere(FetchError):
    """The store has answered that it has nothing under a URL."""


@contextmanager
def naming(key: str, url: str) -> Iterator[None]:
    """Raise SpecError in the block for a URL at which there is nothing.

    Args:
        key: of the spec. url: its value.

    Raises:
        SpecError: instead of NothingThere.
    """
    try:
        yield
    except NothingThere as error:
        fix = "check the path and the bucket"
        raise SpecError([Problem(path=key, value=url, rule="the store has nothing there", fix=fix)]) from error


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """The version of one object that the cache holds."""

    size: int
    modified_s: float
    sha256: str


@dataclass(frozen=True, kw_only=True)
class _Digests:
    md5: str
    sha256: str


def cache_dir() -> Path:
    """Return the folder of fetched files: OPD_CACHE_DIR, else the user's cache."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).absolute() / "fetched"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opd" / "fetched"


def local_copy(url: str, *, cache: Path | None = None, say: Say = print) -> str:
    """Return the local folder (or file, where the URL names one) with what the URL holds now, verified.

    Raises:
        FetchError: nothing is there, it does not match its checksums, or the disk is too small.
        StoreError: the store cannot be read.
    """
    url = url.rstrip("/")
    store, listed, is_file = _listing(url)
    folder = (cache or cache_dir()) / _folder_name(url)
    _Mirror(url, store, folder, say).update(listed)
    return str(folder / listed[0].key if is_file else folder)


def local_file(key: str, path: str) -> Path:
    """Return a file that a key of the spec names, from a store URL its local copy; raises as `naming` and `local_copy`."""
    with naming(key, path):
        return Path(local_copy(path) if is_store_url(path) else path)


def hub_copy(key: str, url: str) -> str:
    """Return the local file with a data set of the hub (`opd.experiment.types.hub_url`), by the `datasets` library.

    Args:
        key: of the spec.

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


def mirror(url: str, folder: Path, *, say: Say = print) -> int:
    """Make a folder hold what the URL holds now, verified; what it holds already is not fetched again.

    Returns:
        Number of files that the URL names.

    Raises:
        FetchError, StoreError: as `local_copy`.
    """
    url = url.rstrip("/")
    store, listed, _ = _listing(url)
    _Mirror(url, store, folder, say).update(listed)
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
    if outside := [info.key for info in listed if leads_out(info.key)]:
        raise FetchError(f"{url}: object names that lead out of the folder: {', '.join(outside)}")
    return store, listed, False


def _folder_name(url: str) -> str:
    """Readable, and its own for each URL."""
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", url.rpartition("/")[2])[:60]
    return f"{label}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


class _Mirror:
    """The folder of the cache that holds what one URL names."""

    def __init__(self, url: str, store: Store, folder: Path, say: Say) -> None:
        self.url, self.store, self.folder, self.say = url, store, folder, say
        self._lock = threading.Lock()
        self._record = self._read_record()

    def update(self, listed: list[ObjectInfo]) -> None:
        """Make the folder hold exactly `listed`."""
        wanted = {info.key: info for info in listed}
        held = in_threads(self._holds, listed)
        missing = [info for info, is_held in zip(listed, held, strict=True) if not is_held]
        if missing:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            self._check_space(missing)
            checksums = self._checksums(wanted)
            with self._progress(sum(info.size for info in missing)):
                in_threads(lambda info: self._download(info, checksums), missing)
            kind = CHECKSUMS_FILE if checksums else "sizes and the store's checksums"
            self.say(f"fetched {self.url}: {len(missing)} files, verified by {kind}, in {self.folder}")
        for key in set(self._record) - set(wanted):
            (self.folder / key).unlink(missing_ok=True)
            del self._record[key]
            self._write_record()

    def _holds(self, info: ObjectInfo) -> bool:
        have, path = self._record.get(info.key), self.folder / info.key
        if have is None or (have.size, have.modified_s) != (info.size, info.modified_s) or not path.is_file():
            return False
        try:
            is_whole = hash_file(path) == (have.size, have.sha256)
        except OSError:  # a bad sector
            is_whole = False
        if not is_whole:
            self.say(f"{path} is not what was fetched from {self.url} (damaged on this disk?): fetching it anew")
        return is_whole

    def _download(self, info: ObjectInfo, checksums: Mapping[str, str] | None) -> None:
        path = self.folder / info.key
        first: _Digests | None = None
        while True:
            self.store.get_file(info.key, path)
            found = _digests(path)
            problem = self._problem(info, path, found, checksums)
            # The store's "MD5" of an encrypted object is none: two equal downloads are then what the object is.
            if problem is None or (checksums is None and found == first and path.stat().st_size == info.size):
                break
            if first is not None:
                path.unlink()
                raise FetchError(
                    f"{self.url}: {info.key} {problem}, twice: the object itself is damaged; upload it again"
                )
            first = found
            self.say(f"fetching {self.url}: {info.key} {problem}: once more")
        with self._lock:
            self._record[info.key] = Fetched(size=info.size, modified_s=info.modified_s, sha256=found.sha256)
            self._write_record()

    def _problem(
        self, info: ObjectInfo, path: Path, found: _Digests, checksums: Mapping[str, str] | None
    ) -> str | None:
        if path.stat().st_size != info.size:
            return f"came with {path.stat().st_size} bytes instead of {info.size}"
        if checksums is not None:
            expected = checksums.get(info.key, found.sha256)
            return None if found.sha256 == expected else f"has SHA-256 {found.sha256}, {CHECKSUMS_FILE} says {expected}"
        md5 = self.store.md5(info.key)
        return None if md5 in (None, found.md5) else f"has MD5 {found.md5}, the store says {md5}"

    def _checksums(self, wanted: Mapping[str, ObjectInfo]) -> dict[str, str] | None:
        """Return SHA-256 by file, where the folder brings its own."""
        if CHECKSUMS_FILE not in wanted:
            return None
        found = {}
        for line in self.store.get(CHECKSUMS_FILE).decode().splitlines():
            digest, _, name = line.strip().partition(" ")
            found[name.strip().lstrip("*").removeprefix("./")] = digest.lower()
        if unlisted := sorted(set(wanted) - set(found) - {CHECKSUMS_FILE}):
            raise FetchError(f"{self.url}/{CHECKSUMS_FILE} does not list {', '.join(unlisted)}: refused")
        if absent := sorted(set(found) - set(wanted)):
            raise FetchError(f"{self.url} lacks {', '.join(absent)}, which its {CHECKSUMS_FILE} lists: refused")
        return found

    def _check_space(self, missing: list[ObjectInfo]) -> None:
        needed, free = sum(info.size for info in missing), shutil.disk_usage(self.folder).free
        if needed > free:
            raise FetchError(
                f"{self.url} needs {needed / _GIB:.1f} GiB, and {self.folder} has {free / _GIB:.1f} GiB free: make room, or "
                f"set {CACHE_VARIABLE} to another disk"
            )

    def _sweep(self) -> None:
        for part in self._parts():
            with suppress(FileNotFoundError):  # another start's, which is complete and renamed by now
                if time.time() - part.stat().st_mtime > STALE_PART_S:
                    part.unlink()

    def _parts(self) -> list[Path]:
        return [path for path in self.folder.rglob(".*.part-*") if path.is_file()]

    @contextmanager
    def _progress(self, num_bytes: int) -> Iterator[None]:
        """Print a line now and then in the block with what has arrived."""
        began_s, done = time.monotonic(), threading.Event()
        before = _num_bytes(self.folder)

        def report() -> None:
            while not done.wait(PROGRESS_INTERVAL_S):
                arrived = max(_num_bytes(self.folder) - before, 0)
                rate = arrived / (time.monotonic() - began_s)
                self.say(
                    f"fetching {self.url}: {arrived / _GIB:.2f} of {num_bytes / _GIB:.2f} GiB, {rate / 2**20:.0f} MiB/s"
                )

        thread = threading.Thread(target=report, name="fetch-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _read_record(self) -> dict[str, Fetched]:
        try:
            record = LocalStore(self.folder).get_json(RECORD_FILE) or {"files": {}}
            return {key: Fetched(**entry) for key, entry in record["files"].items()}
        except (CorruptRecord, KeyError, TypeError, AttributeError) as error:
            self.say(f"{self.folder / RECORD_FILE} is damaged ({error}): fetching {self.url} anew")
            return {}

    def _write_record(self) -> None:
        files = {key: asdict(entry) for key, entry in self._record.items()}
        LocalStore(self.folder).put_json(RECORD_FILE, {"url": self.url, "files": files})


def _num_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder in which others write and rename."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _digests(path: Path) -> _Digests:
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            md5.update(chunk)
            sha256.update(chunk)
    return _Digests(md5=md5.hexdigest(), sha256=sha256.hexdigest())
