"""The object store as the run directory needs it: atomic put, create-only put, get, list and delete under one URL.

A store is a local folder (a path or `file://`) or any fsspec URL whose service has a create-only write (S3, GCS, Azure).
Every call goes through one bounded retry for transient failures; a permanent one ends at once with its reason.
"""

from __future__ import annotations

import json
import logging
import math
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from opd.errors import AlreadyExists, CorruptRecord, CreateOnlyUnsupported, StoreError, StoreRefused, StoreUnavailable
from opd.store.access import SILENCE_S
from opd.store.durable import fsync_file, fsync_folder, make_folder

logger = logging.getLogger(__name__)
T = TypeVar("T")
# A generator of its own: an outage must not move the global one, which is part of a rank's checkpoint.
_JITTER = random.Random()


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long a transient failure is waited out; the last error is raised when `max_elapsed_s` is over.

    `silence_s` is how long an S3 server may send nothing within one try; a store keeps that of the policy it was opened with.
    `call_s` is how long one request of a service may take in all (`FsspecStore`), where that is less than the store's own limit.
    """

    max_elapsed_s: float = 60.0
    first_wait_s: float = 0.2
    max_wait_s: float = 8.0
    silence_s: float = SILENCE_S
    call_s: float = math.inf


DEFAULT_POLICY = RetryPolicy()
# For callers that come back by themselves, such as the metrics stream at its next tick.
NO_RETRY = RetryPolicy(max_elapsed_s=0.0)


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """One stored object: `key` below the store's root, `size` in bytes, `modified_s` in Unix seconds of the store's clock."""

    key: str
    size: int
    modified_s: float


def leads_out(key: str) -> bool:
    """Whether a file named by the key would lie outside the folder that the object is downloaded into."""
    path = PurePosixPath(key)
    return path.is_absolute() or ".." in path.parts


class Store(ABC):
    """Objects under one root, addressed by relative keys with `/`.

    Raises in every method: `StoreUnavailable` once the retries of `policy` are over, `StoreRefused` for what no retry
    mends. `get` and `get_file` raise `FileNotFoundError` for a missing object.
    """

    # What the backend raises when the store, not its caller, is at fault.
    native_errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, url: str, *, policy: RetryPolicy = DEFAULT_POLICY):
        self.url = url.rstrip("/")
        self.policy = policy

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # ---- what a backend supplies; each call is one try ------------------------------------------------------------

    @abstractmethod
    def _child(self, key: str) -> Self: ...

    @abstractmethod
    def _put(self, key: str, data: bytes) -> None: ...

    @abstractmethod
    def _put_file(self, key: str, path: Path) -> None: ...

    @abstractmethod
    def _create(self, key: str, data: bytes) -> None: ...

    @abstractmethod
    def _get(self, key: str) -> bytes: ...

    @abstractmethod
    def _get_file(self, key: str, path: Path) -> None: ...

    @abstractmethod
    def _info(self, key: str) -> ObjectInfo | None: ...

    @abstractmethod
    def _children(self, prefix: str) -> list[str]: ...

    @abstractmethod
    def _list(self, prefix: str) -> list[ObjectInfo]: ...

    @abstractmethod
    def _delete(self, key: str) -> None: ...

    @abstractmethod
    def _delete_tree(self, prefix: str) -> None: ...

    @abstractmethod
    def _translate(self, error: Exception, what: str) -> StoreError:
        """The StoreUnavailable or StoreRefused that a native error means."""

    def _md5(self, key: str) -> str | None:
        return None

    def _keep(self, key: str) -> None:  # noqa: B027 - a service shows only what it keeps
        pass

    # ---- what callers use ----------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> None:
        """Writes or replaces the object; readers see the old bytes or the new ones, never a mixture."""
        self._retrying(f"write {self.url}/{key}", lambda: self._put(key, data))

    def put_file(self, key: str, path: Path) -> None:
        """Uploads a local file of any size; readers see the object only when all of it is there."""
        self._retrying(f"upload {path} to {self.url}/{key}", lambda: self._put_file(key, path))

    def create(self, key: str, data: bytes) -> None:
        """Writes the object only if there is none; of racing writers exactly one succeeds.

        `data` must hold something unique to the writer: when an answer was lost on the way, finding exactly these bytes
        under the key means that this call wrote them.

        Raises:
            AlreadyExists: another writer was first.
        """
        try:
            self._retrying(f"create {self.url}/{key}", lambda: self._create(key, data))
        except AlreadyExists:
            if self._current(key) != data:
                raise
            self.keep(key)  # the call that wrote it may have failed before the store held it for good

    def get(self, key: str) -> bytes:
        return self._retrying(f"read {self.url}/{key}", lambda: self._get(key), may_be_missing=True)

    def get_file(self, key: str, path: Path) -> None:
        """Downloads into `path`, which appears only when all of it is there and on the disk."""
        make_folder(path.parent)
        partial = path.with_name(f".{path.name}.part-{uuid.uuid4().hex[:8]}")
        try:
            self._retrying(f"download {self.url}/{key}", lambda: self._get_file(key, partial), may_be_missing=True)
            fsync_file(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        fsync_folder(path.parent)

    def info(self, key: str) -> ObjectInfo | None:
        """Size and time of one object, None where there is none."""
        return self._retrying(f"look up {self.url}/{key}", lambda: self._info(key))

    def md5(self, key: str) -> str | None:
        """What the service itself calls the object's MD5, in hex (of an encrypted object it may be none); None without one."""
        return self._retrying(f"look up {self.url}/{key}", lambda: self._md5(key), may_be_missing=True)

    def exists(self, key: str) -> bool:
        return self.info(key) is not None

    def keep(self, key: str) -> None:
        """Has the store hold an object for good that was found there: its writer may have been killed just before that."""
        self._retrying(f"sync {self.url}/{key}", lambda: self._keep(key))

    def children(self, prefix: str) -> list[str]:
        """Names directly below a prefix, files and folders, sorted; empty where there is nothing."""
        return sorted(self._retrying(f"list {self.url}/{prefix}", lambda: self._children(prefix)))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Every object below a prefix, sorted by key; empty where there is nothing."""
        found = self._retrying(f"list {self.url}/{prefix}", lambda: self._list(prefix))
        return sorted(found, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        """Removes one object; it is no error if there is none."""
        self._retrying(f"delete {self.url}/{key}", lambda: self._delete(key))

    def delete_tree(self, prefix: str) -> None:
        """Removes every object below a prefix."""
        self._retrying(f"delete {self.url}/{prefix}", lambda: self._delete_tree(prefix))

    def child(self, key: str) -> Self:
        """The same store rooted one or more levels deeper."""
        child = self._child(key)
        child.policy = self.policy
        return child

    def with_policy(self, policy: RetryPolicy) -> Self:
        """The same store with another patience."""
        twin = self._child("")
        twin.policy = policy
        return twin

    def local_path(self, key: str) -> Path | None:
        """Where the object lies on this machine's disk, None for a remote store."""
        return None

    def get_json(self, key: str) -> dict[str, Any] | None:
        """One JSON record, None where there is none.

        Raises:
            CorruptRecord: it is not a JSON object.
        """
        data = self._current(key)
        if data is None:
            return None
        try:
            record = json.loads(data)
        except (ValueError, RecursionError) as error:  # the latter where it is nested too deeply
            raise CorruptRecord(f"{self.url}/{key} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise CorruptRecord(f"{self.url}/{key} holds {type(record).__name__}, expected a JSON object")
        return record

    def put_json(self, key: str, record: Mapping[str, Any]) -> None:
        self.put(key, json_bytes(record))

    def check_create_only(self) -> float:
        """Proves with one throw-away object that the store honours create-only writes, one after the other.

        That it also keeps racing writers apart is the service's promise; `attempts.check_owner` notices where it is broken.

        Returns:
            The store's own clock, Unix seconds, as read from that object: leases are judged by it, not by ours.

        Raises:
            CreateOnlyUnsupported: the second create of the same key did not fail.
        """
        key = f".probe-{uuid.uuid4().hex}"
        self.create(key, uuid.uuid4().bytes)
        try:
            info = self.info(key)
            self.create(key, uuid.uuid4().bytes)
        except AlreadyExists:
            if info is None:
                raise StoreUnavailable(f"{self.url}: an object that was just written is not there") from None
            return info.modified_s
        finally:
            self.delete(key)
        raise CreateOnlyUnsupported(
            f"object store {self.url!r} overwrote an object on a create-only write (If-None-Match: *), so two attempts "
            "could own one run; use a store that honours conditional writes (AWS S3, GCS, versitygw >= 1.8, MinIO >= 2024-09)"
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
            except self.native_errors as error:
                raise self._translate(error, what) from error

        policy = self.policy
        exponential = wait_exponential(multiplier=policy.first_wait_s, max=policy.max_wait_s)
        retrying = Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            wait=lambda state: exponential(state) + _JITTER.uniform(0, policy.first_wait_s),
            stop=stop_after_delay(policy.max_elapsed_s),
            before_sleep=lambda state: (
                logger.warning("retry %d: %s", state.attempt_number, state.outcome.exception())
                if state.outcome
                else None
            ),
            reraise=True,
        )
        return retrying(once)


def json_bytes(record: Mapping[str, Any]) -> bytes:
    """A record as the run directory writes it: strict JSON, sorted keys, one trailing newline."""
    return (json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
