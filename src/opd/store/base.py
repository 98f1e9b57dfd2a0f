"""The object store of a run directory: atomic put, create-only put, get, list and delete under one URL.

A store is a local folder (a path or `file://`) or any fsspec URL whose service has a create-only write (S3, GCS, Azure).
Every call has one bounded retry for transient failures; a permanent failure ends at once with its reason.
"""

import copy
import errno
import json
import logging
import random
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from tenacity import Retrying, before_sleep_log, retry_if_exception_type, stop_after_delay, wait_exponential

from opd.errors import AlreadyExists, CorruptRecord, CreateOnlyUnsupported, RunError, StoreRefused, StoreUnavailable
from opd.store.durable import placing

logger = logging.getLogger(__name__)
T = TypeVar("T")
# The global generator is part of a rank's checkpoint: an outage must not draw from it.
_JITTER = random.Random()
_PROBE = ".probe"
# A network file system without its server, and s3fs' errors for 409, 500, 503 and unknown codes (502, 504).
TRANSIENT_ERRNOS = {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ECONNREFUSED, errno.ECONNRESET,
    errno.EPIPE, getattr(errno, "EREMOTEIO", errno.EIO),
}  # fmt: skip
# HTTP statuses for a moment: time-out, too many requests, server errors.
_TRANSIENT_STATUSES = {"408", "429", "500", "502", "503", "504"}
# Names of client libraries' errors that another try cannot mend.
_PERMANENT = re.compile(r"Credential|Auth|Validation|Invalid|Region|ImportError")


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Patience with transient failures."""

    max_elapsed_s: float = 60.0
    first_wait_s: float = 0.2
    max_wait_s: float = 8.0


DEFAULT_POLICY = RetryPolicy()
# For callers that try again by themselves, such as the metrics stream at its next tick.
NO_RETRY = RetryPolicy(max_elapsed_s=0.0)


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """One stored object: `key` below the store's root, `size` in bytes, `modified_s` in Unix seconds of the store's clock."""

    key: str
    size: int
    modified_s: float


class Store(Protocol):
    """Objects under one root, addressed by relative keys with `/`.

    Every method raises `StoreUnavailable` after the retries of `policy`, and `StoreRefused` for a permanent failure.
    `get` and `get_file` raise `FileNotFoundError` for a missing object. A backend gives one try of each call, whose
    `native_errors` are the store's fault, not the caller's.
    """

    url: str
    policy: RetryPolicy
    native_errors: tuple[type[Exception], ...] = (OSError,)

    def _put(self, key: str, data: bytes) -> None: ...
    def _put_file(self, key: str, path: Path) -> None: ...
    def _create(self, key: str, data: bytes) -> None: ...
    def _get(self, key: str) -> bytes: ...
    def _get_file(self, key: str, path: Path) -> None: ...
    def _info(self, key: str) -> ObjectInfo | None: ...
    def _children(self, prefix: str) -> list[str]: ...
    def _list(self, prefix: str) -> list[ObjectInfo]: ...
    def _delete(self, key: str) -> None: ...
    def _delete_tree(self, prefix: str) -> None: ...
    def _fix(self, error: Exception) -> str: ...

    def __init__(self, url: str, *, policy: RetryPolicy = DEFAULT_POLICY):
        self.url = url.rstrip("/")
        self.policy = policy

    def child(self, key: str) -> Self:
        """Return the same store rooted one or more levels deeper."""
        twin = copy.copy(self)
        twin.url = f"{self.url}/{key}"
        return twin

    def with_policy(self, policy: RetryPolicy) -> Self:
        """Return the same store with another patience."""
        twin = copy.copy(self)
        twin.policy = policy
        return twin

    def put(self, key: str, data: bytes) -> None:
        """Write or replace the object; readers get the old bytes or the new ones, never a mixture."""
        self._retrying(f"write {self.url}/{key}", lambda: self._put(key, data))

    def put_file(self, key: str, path: Path) -> None:
        """Upload a local file of any size; readers get the object only after all of it has arrived."""
        self._retrying(f"upload {path} to {self.url}/{key}", lambda: self._put_file(key, path))

    def create(self, key: str, data: bytes) -> None:
        """Write the object only if there is none; raise AlreadyExists for all but one of racing writers.

        `data` must be unique to the writer: after a lost answer, these bytes under the key prove that this call wrote them.
        """
        try:
            self._retrying(f"create {self.url}/{key}", lambda: self._create(key, data))
        except AlreadyExists:
            if self._current(key) != data:
                raise
            self.keep(key)  # the writing call may have failed before its sync

    def get(self, key: str) -> bytes:
        return self._retrying(f"read {self.url}/{key}", lambda: self._get(key), may_be_missing=True)

    def get_file(self, key: str, path: Path) -> None:
        """Download into `path`, which appears only after all of it is synced."""
        with placing(path) as partial:
            self._retrying(f"download {self.url}/{key}", lambda: self._get_file(key, partial), may_be_missing=True)

    def info(self, key: str) -> ObjectInfo | None:
        """Return size and time of one object, None where there is none."""
        return self._retrying(f"look up {self.url}/{key}", lambda: self._info(key))

    def exists(self, key: str) -> bool:
        return self.info(key) is not None

    def keep(self, key: str) -> None:
        """Sync an object that another process wrote: it may have been killed before its own sync."""
        return None  # a service lists only objects that it has stored

    def children(self, prefix: str) -> list[str]:
        """Return names of files and folders directly below a prefix, sorted."""
        return sorted(self._retrying(f"list {self.url}/{prefix}", lambda: self._children(prefix)))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return every object below a prefix, sorted by key."""
        found = self._retrying(f"list {self.url}/{prefix}", lambda: self._list(prefix))
        return sorted(found, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        """Remove one object, if there is one."""
        self._retrying(f"delete {self.url}/{key}", lambda: self._delete(key))

    def delete_tree(self, prefix: str) -> None:
        """Remove every object below a prefix."""
        self._retrying(f"delete {self.url}/{prefix}", lambda: self._delete_tree(prefix))

    def local_path(self, key: str) -> Path | None:
        """Return the object's path on this machine's disk, None for a remote store."""
        return None

    def get_json(self, key: str) -> dict[str, Any] | None:
        """Return one JSON record, None where there is none; raise CorruptRecord for any other content."""
        if (data := self._current(key)) is None:
            return None
        try:
            record = json.loads(data)
        except (ValueError, RecursionError) as error:  # the latter for a deeply nested record
            raise CorruptRecord(f"{self.url}/{key} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise CorruptRecord(f"{self.url}/{key} holds {type(record).__name__}, expected a JSON object")
        return record

    def put_json(self, key: str, record: Mapping[str, Any]) -> None:
        self.put(key, json_bytes(record))

    def check_create_only(self) -> None:
        """Raise CreateOnlyUnsupported unless the store rejects the second of two create-only writes of one object, which stays."""
        try:
            for _ in range(2):
                self.create(_PROBE, uuid.uuid4().bytes)
        except AlreadyExists:
            return
        raise CreateOnlyUnsupported(
            f"object store {self.url!r} overwrote an object on a create-only write, so two attempts could own one run. Use a "
            "store that honours conditional writes (AWS S3, GCS, versitygw >= 1.8, MinIO >= 2024-09)"
        )

    def _current(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def _retrying(self, what: str, call: Callable[[], T], *, may_be_missing: bool = False) -> T:
        def once() -> T:
            try:
                return call()
            except FileNotFoundError as error:
                if may_be_missing:
                    raise
                raise StoreRefused(f"cannot {what}: {error}; does the bucket or folder exist?") from error
            except RunError:
                raise
            except self.native_errors as error:
                text = f"cannot {what}: {type(error).__name__}: {error}"
                if is_transient(error):
                    raise StoreUnavailable(text) from error
                raise StoreRefused(f"{text}; {self._fix(error)}") from error

        return patiently(self.policy, once)


def is_transient(error: Exception) -> bool:
    """Return True if a disk or service may answer the same call a moment later: the one rule of what is retried."""
    names = [base.__name__ for base in type(error).__mro__]
    if isinstance(error, PermissionError) or any(map(_PERMANENT.search, names)):
        return False
    if status := getattr(error, "code", None) or getattr(error, "status_code", None):
        return str(status) in _TRANSIENT_STATUSES
    if isinstance(error, OSError) and not any("Connection" in name or name == "TimeoutError" for name in names):
        return error.errno in TRANSIENT_ERRNOS
    return True


def patiently(policy: RetryPolicy, call: Callable[[], T]) -> T:
    """Return the call's answer; call again after each StoreUnavailable, for as long as the policy says."""
    exponential = wait_exponential(multiplier=policy.first_wait_s, max=policy.max_wait_s)
    return Retrying(
        retry=retry_if_exception_type(StoreUnavailable),
        wait=lambda state: exponential(state) + _JITTER.uniform(0, policy.first_wait_s),
        stop=stop_after_delay(policy.max_elapsed_s),
        before_sleep=before_sleep_log(logger, logging.WARNING),
        reraise=True,
    )(call)


def json_bytes(record: Mapping[str, Any]) -> bytes:
    """Return a record as the run directory holds it: strict JSON, sorted keys, one trailing newline."""
    return (json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
