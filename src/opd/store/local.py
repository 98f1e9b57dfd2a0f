"""The store in a local or mounted folder: hard links create, renames put, and every file is synced before it has its name."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR
from typing import Self

from opd.errors import AlreadyExists, StoreError, StoreRefused, StoreUnavailable
from opd.store.base import DEFAULT_POLICY, ObjectInfo, RetryPolicy, Store
from opd.store.durable import fsync_file, fsync_folder, make_folder

logger = logging.getLogger(__name__)

# Answers of a network file system without its server; all others are permanent.
TRANSIENT_ERRNOS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.EINTR}
# Answers of a file system without hard links (SMB, some FUSE mounts).
NO_HARD_LINK_ERRNOS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
TEMPORARY_PREFIX = ".opd-tmp-"  # prefix of files without their final name yet, which no listing shows


class LocalStore(Store):
    """Objects as files under `root`, which the first write creates."""

    def __init__(self, root: Path, *, policy: RetryPolicy = DEFAULT_POLICY):
        self.root = Path(os.path.abspath(root))
        super().__init__(str(self.root), policy=policy)
        self._synced_folders: set[Path] = set()

    def local_path(self, key: str) -> Path:
        return self.root / key

    def sweep_temporary(self, prefix: str) -> None:
        """Remove half-deleted folders of killed processes directly below a prefix; no reader needs them."""
        for path in self.local_path(prefix).glob(f"{TEMPORARY_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)

    def child(self, key: str) -> Self:
        child = type(self)(self.root / key, policy=self.policy)
        child._synced_folders = self._synced_folders
        return child

    def _temporary(self, key: str) -> Path:
        folder = self.local_path(key).parent
        make_folder(folder, self._synced_folders)
        return folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"

    @contextlib.contextmanager
    def _replacing(self, key: str) -> Iterator[Path]:
        """Let the block write a file, which then gets the key's name."""
        temporary = self._temporary(key)
        try:
            yield temporary
            os.replace(temporary, self.local_path(key))
        finally:
            temporary.unlink(missing_ok=True)
        fsync_folder(temporary.parent)

    def _put(self, key: str, data: bytes) -> None:
        with self._replacing(key) as temporary:
            _write_synced(temporary, data)

    def _put_file(self, key: str, path: Path) -> None:
        target = self.local_path(key)
        if target.exists() and os.path.samefile(path, target):
            return  # the run directory is the store
        with self._replacing(key) as temporary:
            shutil.copyfile(path, temporary)
            fsync_file(temporary)

    def _create(self, key: str, data: bytes) -> None:
        # A hard link is as exclusive as O_EXCL, and the file has all its bytes when it gets its name.
        temporary, target = self._temporary(key), self.local_path(key)
        try:
            _write_synced(temporary, data)
            try:
                os.link(temporary, target)
            except OSError as error:
                if error.errno not in NO_HARD_LINK_ERRNOS:
                    raise
                _write_synced(target, data)
        except FileExistsError as error:
            raise AlreadyExists(f"{target} exists") from error
        finally:
            temporary.unlink(missing_ok=True)
        fsync_folder(target.parent)

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

    def _keep(self, key: str) -> None:
        path = self.local_path(key)
        fsync_file(path)
        fsync_folder(path.parent)

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
        try:
            self.local_path(key).unlink()
        except FileNotFoundError:
            return
        fsync_folder(self.local_path(key).parent)

    def _delete_tree(self, prefix: str) -> None:
        folder = self.local_path(prefix)
        if folder.exists():
            # Renamed first: a half-deleted folder must not look like a half-written one.
            doomed = folder.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
            folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            if doomed.exists():  # NFS keeps files that a reader of this node holds open
                logger.warning("%s stays until the next sweep", doomed)

    def _translate(self, error: Exception, what: str) -> StoreError:
        if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
            return StoreUnavailable(f"cannot {what}: {error}")
        return StoreRefused(f"cannot {what}: {error}; check that the folder exists, is writable and has space")


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
