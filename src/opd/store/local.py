"""The store in a local or mounted folder: hard links create, renames put, and every file is synced before it has its name."""

import errno
import os
import shutil
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from stat import S_ISDIR

from opd.errors import AlreadyExists
from opd.store.base import DEFAULT_POLICY, ObjectInfo, RetryPolicy, Store
from opd.store.durable import fsync_file, fsync_folder, placing

# Answers of a file system without hard links (SMB, some FUSE mounts).
NO_HARD_LINK_ERRNOS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_DOOMED = ".opd-tmp-"  # prefix of folders that are being deleted, which no listing shows


class LocalStore(Store):
    """Objects as files under `root`, which the first write creates."""

    def __init__(self, root: Path, *, policy: RetryPolicy = DEFAULT_POLICY):
        super().__init__(os.path.abspath(root), policy=policy)
        self._synced_folders: set[Path] = set()

    @property
    def root(self) -> Path:
        return self.local_path("")

    def local_path(self, key: str) -> Path:
        return Path(f"{self.url}/{key}")

    def keep(self, key: str) -> None:
        for path in (self.local_path(key), self.local_path(key).parent):
            self._retrying(f"sync {path}", partial(fsync_file, path))

    def _put(self, key: str, data: bytes) -> None:
        with placing(self.local_path(key), self._synced_folders) as unnamed:
            unnamed.write_bytes(data)

    def _put_file(self, key: str, path: Path) -> None:
        target = self.local_path(key)
        if target.exists() and os.path.samefile(path, target):
            return  # the run directory is the store
        with placing(target, self._synced_folders) as unnamed:
            shutil.copyfile(path, unnamed)

    def _create(self, key: str, data: bytes) -> None:
        with placing(self.local_path(key), self._synced_folders, _link) as unnamed:
            unnamed.write_bytes(data)

    def _get(self, key: str) -> bytes:
        return self.local_path(key).read_bytes()

    def _get_file(self, key: str, path: Path) -> None:
        shutil.copyfile(self.local_path(key), path)

    def _info(self, key: str) -> ObjectInfo | None:
        try:
            status = self.local_path(key).stat()
        except FileNotFoundError:
            return None
        return None if S_ISDIR(status.st_mode) else ObjectInfo(key=key, size=status.st_size, modified_s=status.st_mtime)

    def _children(self, prefix: str) -> list[str]:
        try:
            names = os.listdir(self.local_path(prefix))
        except FileNotFoundError:
            return []
        return [name for name in names if not name.startswith(".")]

    def _list(self, prefix: str) -> list[ObjectInfo]:
        found = []
        for folder, subfolders, names in os.walk(self.local_path(prefix), onerror=_raise_unless_missing):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            keys = [(Path(folder) / name).relative_to(self.root).as_posix() for name in names if name[0] != "."]
            found += [info for info in map(self._info, keys) if info is not None]  # some are deleted since the listing
        return found

    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self.local_path(key).unlink()
            fsync_folder(self.local_path(key).parent)

    def _delete_tree(self, prefix: str) -> None:
        folder = self.local_path(prefix)
        if folder.exists():
            # Renamed first: a half-deleted folder must not look like a half-written one.
            folder.rename(folder.with_name(f"{_DOOMED}{uuid.uuid4().hex}"))
            for doomed in folder.parent.glob(f"{_DOOMED}*"):  # also of processes that were killed
                shutil.rmtree(doomed, ignore_errors=True)

    def _fix(self, error: Exception) -> str:
        return "check that the folder exists, is writable and has space"


def _link(unnamed: Path, target: Path) -> None:
    """Give a whole file its name, as exclusive as O_EXCL: raise AlreadyExists if another file has it."""
    try:
        try:
            os.link(unnamed, target)
        except OSError as error:
            if error.errno not in NO_HARD_LINK_ERRNOS:
                raise
            with open(target, "xb") as file:
                file.write(unnamed.read_bytes())
                file.flush()
                os.fsync(file.fileno())
    except FileExistsError as error:
        raise AlreadyExists(f"{target} exists") from error


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
