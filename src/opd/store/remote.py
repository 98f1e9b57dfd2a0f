"""The store at a URL: a folder, or S3, GCS and Azure, whose services reject the second of two create-only writes."""

import asyncio
import errno
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec

from opd.errors import AlreadyExists, CreateOnlyUnsupported, NoBucket, StoreRefused
from opd.store.access import CREATE_ONLY_PROTOCOLS, storage_options
from opd.store.base import DEFAULT_POLICY, ObjectInfo, RetryPolicy, Store
from opd.store.local import LocalStore
from opd.store.transfer import in_threads

NUM_DELETE_THREADS = 8
CALL_DEADLINE_S = 25.0  # limit of one request: a connection that brings a byte now and then never times out by itself
LIST_DEADLINE_S = 600.0  # a listing is one request for each thousand objects
# A slower transfer does not end in useful time.
SLOWEST_BYTES_PER_S = 64 * 2**10


def open_store(
    url: str | Path, *, policy: RetryPolicy = DEFAULT_POLICY, environment: Mapping[str, str] | None = None
) -> Store:
    """Open the store at a local path, a `file://` URL or another fsspec URL; `environment` has other access settings.

    Raises:
        CreateOnlyUnsupported: the URL's service is not known to have a create-only write.
        StoreRefused: the service's fsspec package is not installed.
    """
    path = str(url).removeprefix("file://")
    if "://" not in path:
        return LocalStore(Path(path), policy=policy)
    return FsspecStore(path, policy=policy, environment=environment)


class FsspecStore(Store):
    """Objects below `url`; raises as `open_store`. Credentials come from the environment (AWS_*, GOOGLE_*, AZURE_*)."""

    # The client libraries raise nearly anything at an answer without its headers or fields.
    native_errors = (Exception,)

    def __init__(self, url: str, *, policy: RetryPolicy = DEFAULT_POLICY, environment: Mapping[str, str] | None = None):
        super().__init__(url, policy=policy)
        protocol = self.url.partition("://")[0]
        if protocol not in CREATE_ONLY_PROTOCOLS:
            raise CreateOnlyUnsupported(
                f"object store {url!r}: {protocol}:// has no atomic create-only write, which attempts are claimed "
                f"with; use a local path, file:// or one of {', '.join(CREATE_ONLY_PROTOCOLS)}"
            )
        self.filesystem = _filesystem(protocol, url, environment)
        # s3fs asks for the size first, to read large objects in parts at once: twice the requests for a record.
        self._one_request = {"max_concurrency": 1} if protocol == "s3" else {}

    @property
    def root(self) -> str:
        return self.url.partition("://")[2]

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}".rstrip("/")

    def _call(self, name: str, *arguments: Any, num_bytes: int = 0, deadline_s: float = 0.0, **more: Any) -> Any:
        """Call the file system, and close the connection at the deadline, to which each transferred byte adds time."""
        deadline_s = (deadline_s or CALL_DEADLINE_S) + num_bytes / SLOWEST_BYTES_PER_S
        call = getattr(self.filesystem, f"_{name}")(*arguments, **more)
        future = asyncio.run_coroutine_threadsafe(call, self.filesystem.loop)
        try:
            return future.result(deadline_s)
        except TimeoutError as error:
            if future.done():
                raise  # the service's own, or the connection's
            raise TimeoutError(f"no whole answer within {deadline_s:.0f} s") from error
        finally:
            future.cancel()

    def _put(self, key: str, data: bytes) -> None:
        self._call("pipe_file", self._path(key), data, num_bytes=len(data))

    def _put_file(self, key: str, path: Path) -> None:
        self._call("put_file", str(path), self._path(key), num_bytes=path.stat().st_size)

    def _create(self, key: str, data: bytes) -> None:
        try:
            self._call("pipe_file", self._path(key), data, mode="create")
        except FileExistsError as error:
            raise AlreadyExists(f"{self.url}/{key} exists") from error
        except OSError as error:
            # s3fs turns 412 into EINVAL, as it does for bad requests: only an existing object means "lost".
            if error.errno == errno.EINVAL and self._info(key) is not None:
                raise AlreadyExists(f"{self.url}/{key} exists") from error
            raise

    def _get(self, key: str) -> bytes:
        return bytes(self._call("cat_file", self._path(key), **self._one_request))

    def _get_file(self, key: str, path: Path) -> None:
        info = self._info(key)
        if info is None:
            raise FileNotFoundError(f"{self.url}/{key}")
        self._call("get_file", self._path(key), str(path), num_bytes=info.size)

    def _look(self, name: str, path: str, **more: Any) -> Any:
        """Call the file system; return None where there is nothing, raise NoBucket where the bucket itself is missing."""
        try:
            return self._call(name, path, **more)
        except FileNotFoundError as error:
            answer = getattr(error.__cause__, "response", None) or {}  # of S3; the others' missing bucket looks empty
            if answer.get("Error", {}).get("Code") == "NoSuchBucket":
                bucket = self.root.partition("/")[0]
                raise NoBucket(f"object store {self.url!r}: bucket {bucket!r} does not exist") from error
            return None

    def _info(self, key: str) -> ObjectInfo | None:
        found = self._look("info", self._path(key))
        return _object_info(key, found) if found and found["type"] == "file" else None

    def _children(self, prefix: str) -> list[str]:
        path = self._path(prefix)
        names = {entry["name"].rstrip("/") for entry in self._look("ls", path, detail=True) or ()}
        return [name.rpartition("/")[2] for name in names if name != path]

    def _list(self, prefix: str) -> list[ObjectInfo]:
        found = self._look("find", self._path(prefix), detail=True, deadline_s=LIST_DEADLINE_S) or {}
        return [
            _object_info(path.removeprefix(self.root).strip("/"), entry)
            for path, entry in found.items()  # without `folder/`, the empty objects of consoles and mounts
            if not path.endswith("/") and not str(entry.get("Key") or entry["name"]).endswith("/")
        ]

    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._call("rm_file", self._path(key))

    def _delete_tree(self, prefix: str) -> None:
        # One request for each object: s3fs' bulk delete drops the errors of single objects.
        in_threads(self._delete, [info.key for info in self._list(prefix)], num_threads=NUM_DELETE_THREADS)

    def _fix(self, error: Exception) -> str:
        if isinstance(error, PermissionError) or "Credential" in type(error).__name__:  # botocore's NoCredentialsError
            return f"check the credentials in the environment and their rights on {self.url}"
        return "check the URL, and endpoint and region in the environment"


def _filesystem(protocol: str, url: str, environment: Mapping[str, str] | None) -> fsspec.AbstractFileSystem:
    try:
        filesystem = fsspec.filesystem(protocol, use_listings_cache=False, **storage_options(url, environment))
    except ImportError as error:
        fix = "`pip install 'opd[gcs]'` for gs://, 'opd[azure]' for az://"
        raise StoreRefused(f"object store {url!r}: {error}: {fix}") from error
    if protocol == "s3":
        filesystem.retries = 1  # the bounded, named retries are Store's
    return filesystem


def _object_info(key: str, entry: dict[str, Any]) -> ObjectInfo:
    """Read fsspec's entry, in which each service has its own name for the modification time."""
    modified = entry.get("LastModified") or entry.get("last_modified") or entry.get("mtime")
    timestamp = modified.timestamp() if modified is not None else 0.0
    return ObjectInfo(key=key, size=int(entry["size"] or 0), modified_s=timestamp)
