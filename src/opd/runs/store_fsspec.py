"""The store behind an fsspec URL: S3, GCS and Azure, whose services refuse the second of two create-only writes."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import fsspec

from opd.runs.errors import AlreadyExists, CreateOnlyUnsupported, StoreError, StoreRefused, StoreUnavailable
from opd.runs.store import DEFAULT_POLICY, ObjectInfo, RetryPolicy, Store

# Protocols whose fsspec package passes `mode="create"` on to an atomic precondition of the service.
CREATE_ONLY_PROTOCOLS = {
    "s3": "If-None-Match: * (s3fs)",
    "s3a": "If-None-Match: * (s3fs)",
    "gs": "ifGenerationMatch=0 (gcsfs)",
    "gcs": "ifGenerationMatch=0 (gcsfs)",
    "az": "If-None-Match: * (adlfs)",
    "abfs": "If-None-Match: * (adlfs)",
}
# How s3fs.errors maps 409, 500, 503 and the codes it does not know (502, 504, ConditionalRequestConflict).
TRANSIENT_ERRNOS = {
    errno.EBUSY,
    errno.EIO,
    getattr(errno, "EREMOTEIO", errno.EIO),
    errno.ETIMEDOUT,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EPIPE,
}
# One try must end soon, since the retries are ours: botocore's own patience would be 60 s x 5 a connection.
S3_CLIENT_CONFIG = {"connect_timeout": 5, "read_timeout": 20, "retries": {"total_max_attempts": 1}}
NUM_DELETE_THREADS = 8


class FsspecStore(Store):
    """Objects below `url`; credentials and endpoint come from the environment (AWS_*, GOOGLE_*, AZURE_*).

    Raises:
        CreateOnlyUnsupported: the protocol is not one of CREATE_ONLY_PROTOCOLS.
        StoreRefused: the protocol's package is not installed.
    """

    def __init__(
        self, url: str, *, policy: RetryPolicy = DEFAULT_POLICY, filesystem: fsspec.AbstractFileSystem | None = None
    ):
        super().__init__(url, policy=policy)
        self.protocol, _, self.root = self.url.partition("://")
        if self.protocol not in CREATE_ONLY_PROTOCOLS:
            raise CreateOnlyUnsupported(
                f"object store {url!r}: {self.protocol}:// has no atomic create-only write, which attempts are claimed "
                f"with; use a local path, file:// or one of {', '.join(sorted(CREATE_ONLY_PROTOCOLS))}"
            )
        self.filesystem = filesystem or _filesystem(self.protocol, url)
        self.native_errors = (OSError, TimeoutError, *_client_errors(self.protocol))

    def _child(self, key: str) -> Self:
        return type(self)(f"{self.url}/{key}", policy=self.policy, filesystem=self.filesystem)

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}".rstrip("/")

    def _relative(self, path: str) -> str:
        return path.removeprefix(self.root).strip("/")

    def _put(self, key: str, data: bytes) -> None:
        self.filesystem.pipe_file(self._path(key), data)

    def _put_file(self, key: str, path: Path) -> None:
        self.filesystem.put_file(str(path), self._path(key))

    def _create(self, key: str, data: bytes) -> None:
        try:
            self.filesystem.pipe_file(self._path(key), data, mode="create")
        except FileExistsError as error:
            raise AlreadyExists(f"{self.url}/{key} exists") from error
        except OSError as error:
            # s3fs turns 412 into EINVAL, which it also uses for bad requests: only an object that is there means "lost".
            if error.errno == errno.EINVAL and self._info(key) is not None:
                raise AlreadyExists(f"{self.url}/{key} exists") from error
            if error.errno == errno.ENOSYS:
                raise CreateOnlyUnsupported(f"object store {self.url!r} refuses create-only writes: {error}") from error
            raise

    def _get(self, key: str) -> bytes:
        return self.filesystem.cat_file(self._path(key))

    def _get_file(self, key: str, path: Path) -> None:
        self.filesystem.get_file(self._path(key), str(path))

    def _info(self, key: str) -> ObjectInfo | None:
        try:
            found = self.filesystem.info(self._path(key))
        except FileNotFoundError:
            return None
        return _object_info(key, found) if found["type"] == "file" else None

    def _children(self, prefix: str) -> list[str]:
        path = self._path(prefix)
        try:
            names = {entry["name"].rstrip("/") for entry in self.filesystem.ls(path, detail=True)}
        except FileNotFoundError:
            return []
        return [name.rpartition("/")[2] for name in names if name != path]

    def _list(self, prefix: str) -> list[ObjectInfo]:
        try:
            found = self.filesystem.find(self._path(prefix), detail=True)
        except FileNotFoundError:
            return []
        return [_object_info(self._relative(path), entry) for path, entry in found.items()]

    def _delete(self, key: str) -> None:
        try:
            self.filesystem.rm_file(self._path(key))
        except FileNotFoundError:
            return

    def _delete_tree(self, prefix: str) -> None:
        # One request an object: s3fs' bulk delete drops the errors of single objects.
        with ThreadPoolExecutor(NUM_DELETE_THREADS) as pool:
            list(pool.map(lambda info: self._delete(info.key), self._list(prefix)))

    def _translate(self, error: Exception, what: str) -> StoreError:
        message = f"cannot {what}: {type(error).__name__}: {error}"
        if isinstance(error, PermissionError) or "Credential" in type(error).__name__:  # botocore's NoCredentialsError
            return StoreRefused(f"{message}; check the credentials in the environment and their rights on {self.url}")
        if isinstance(error, TimeoutError | ConnectionError) or _is_connection_failure(error):
            return StoreUnavailable(message)
        if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
            return StoreUnavailable(message)
        return StoreRefused(message)


def _filesystem(protocol: str, url: str) -> fsspec.AbstractFileSystem:
    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol in ("s3", "s3a"):
        options["config_kwargs"] = S3_CLIENT_CONFIG
    try:
        filesystem = fsspec.filesystem(protocol, **options)
    except ImportError as error:
        raise StoreRefused(f"object store {url!r}: {error}; install the fsspec package for {protocol}://") from error
    if protocol in ("s3", "s3a"):
        filesystem.retries = 1  # the bounded, named retries are Store's
    return filesystem


def _client_errors(protocol: str) -> tuple[type[Exception], ...]:
    """Errors of the service's client library that are no OSError."""
    if protocol not in ("s3", "s3a"):
        return ()
    from botocore.exceptions import BotoCoreError

    return (BotoCoreError,)


def _is_connection_failure(error: Exception) -> bool:
    """botocore's families for no connection, a cut one, a time-out and half an answer."""
    families = {"ConnectionError", "HTTPClientError", "ResponseParserError"}
    return any(base.__name__ in families for base in type(error).__mro__)


def _object_info(key: str, entry: dict[str, Any]) -> ObjectInfo:
    """fsspec's entry with the modification time each service calls differently."""
    modified = entry.get("LastModified") or entry.get("last_modified") or entry.get("mtime")
    timestamp = modified.timestamp() if modified is not None else 0.0
    return ObjectInfo(key=key, size=int(entry["size"] or 0), modified_s=timestamp)
