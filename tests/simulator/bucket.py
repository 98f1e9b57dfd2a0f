"""A bucket over a network: what fsspec's file systems answer, and when a request takes effect at the service.

`FsspecStore` is the real one; this takes the place of its s3fs. A request has three times: it reaches the service, its answer
comes back, and the client stops waiting. A fault moves or drops any of them.
"""

import contextlib
import errno
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import EndpointConnectionError

from tests.simulator.scheduler import EPOCH_S, Killed

# Of a request: the fault, what the client sees of it, and whether the service does as asked.
REFUSALS: dict[str, Callable[[], Exception]] = {
    "away": lambda: EndpointConnectionError(endpoint_url="https://bucket"),
    "throttled": lambda: OSError(errno.EBUSY, "Please reduce your request rate."),
    "server error": lambda: OSError(getattr(errno, "EREMOTEIO", errno.EIO), "We encountered an internal error."),
    "denied": lambda: PermissionError(errno.EACCES, "Access Denied"),
}
LOST_ANSWERS: dict[str, Callable[[], Exception]] = {
    "answer lost": lambda: ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "odd answer": lambda: KeyError("ContentLength"),
}
# For a while: no answer at all; or no changes, as with a used-up quota. Or no reads, as with a
# lost encryption key; listings still work.
LASTING = ("outage", "no writes", "no reads")
# From now on the service rejects this attempt's credentials, and no other attempt's.
REVOKED = "revoked"
KINDS = (*REFUSALS, *LOST_ANSWERS, "late", "never", "twice", "slow", REVOKED, *LASTING)
# The fate of a request: rejected for good, not answered for longer than it is retried, or mostly mended by the next try. A
# change may take effect after its sender has given up.
_REST = tuple(kind for kind in KINDS if kind not in ("late", "twice", "denied", REVOKED, *LASTING))
OF_READS = (("denied",), (REVOKED,), ("no reads",), ("outage",), _REST)
OF_WRITES = ((REVOKED,), ("late",), ("twice",), ("denied",), ("no writes",), ("outage",), _REST)
# Mostly it takes effect after its sender has given up; else its effect is unknown, or it has none.
OF_LATE = (("late",), ("late",), ("late",), ("twice",), ("answer lost", "odd answer"), ("never", "no writes", "denied"))
WRITES = ("put", "create", "upload", "delete")
READS = ("get", "download")


class Bucket:
    """The service: objects by key, with its own clock."""

    def __init__(self, world: Any):
        self.world = world
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.offset_s = 0.0
        self.until_s = dict.fromkeys(LASTING, 0.0)
        # Since when the service rejects the credentials of an attempt.
        self.revoked_s: dict[int, float] = {}
        # "late" or "twice", while a request takes effect whose client has its answer already, or waits no more.
        self.stray = ""

    def put(self, key: str, data: bytes, *, creates: bool, author: int) -> None:
        if creates and key in self.objects:
            raise OSError(errno.EINVAL, "PreconditionFailed")
        before = self.objects.get(key, (None,))[0]
        if before != data:
            self.world.oracle.changed(key, author, self.stray, is_shorter=len(data) < len(before or b""))
        self.objects[key] = (data, EPOCH_S + self.world.now_s + self.offset_s)

    def delete(self, key: str, *, author: int) -> None:
        if self.objects.pop(key, None) is not None:
            self.world.oracle.changed(key, author, self.stray)

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key][0]
        except KeyError:
            raise FileNotFoundError(key) from None

    def sealed_keys(self) -> list[tuple[str, bytes]]:
        """The objects of sealed steps."""
        sealed = tuple(key.removesuffix("COMPLETE") for key in self.objects if key.endswith("/COMPLETE"))
        return [(key, data) for key, (data, _) in self.objects.items() if key.startswith(sealed)] if sealed else []

    def entry(self, key: str) -> dict[str, Any]:
        data, modified_s = self.objects[key]
        modified = datetime.fromtimestamp(modified_s, UTC)
        return {"name": key, "Key": key, "size": len(data), "type": "file", "LastModified": modified}

    def info(self, key: str) -> dict[str, Any]:
        if key in self.objects:
            return self.entry(key)
        if any(other.startswith(key + "/") for other in self.objects):
            return {"name": key, "size": 0, "type": "directory"}
        raise FileNotFoundError(key)

    def ls(self, path: str) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for key in self.objects:
            if key.startswith(path + "/"):
                name, _, below = key[len(path) + 1 :].partition("/")
                full = f"{path}/{name}"
                found[full] = {"name": full, "size": 0, "type": "directory"} if below else self.entry(key)
        if not found:
            raise FileNotFoundError(path)
        return list(found.values())

    def find(self, path: str) -> dict[str, dict[str, Any]]:
        return {key: self.entry(key) for key in self.objects if key.startswith(path + "/")}


class Request:
    """A coroutine as s3fs has it: nothing happens until it is run."""

    def __init__(self, world: Any, what: str, key: str, call: Callable[[], Any], *, writes: bool):
        self.world, self.what, self.key, self.call, self.writes = world, what, key, call, writes
        self.before: Callable[[], None] | None = None
        self.after: Callable[[Any], Any] | None = None


class Future:
    """The answer of a request that is under way."""

    def __init__(self, request: Request):
        self.request, self._is_done = request, False

    def result(self, deadline_s: float) -> Any:
        request, world = self.request, self.request.world
        if request.before is not None:
            try:
                request.before()
            except Exception:
                self._is_done = True
                raise
        until_s = world.now_s + deadline_s
        kind = world.store_call(request.what, request.key, writes=request.writes)
        there_s, back_s = 0.02 + 0.1 * world.random.random(), 0.02
        if kind in REFUSALS:
            world.sleep(there_s)
            self._fail(REFUSALS[kind]())
        if kind in ("late", "never"):
            if kind == "late":
                world.at(until_s + world.random.choice((0.5, 5.0, 60.0, 300.0)), lambda: self._unheard("late"))
            world.block(until_s)
            raise TimeoutError
        if kind == "slow":
            there_s = min(world.random.uniform(1.0, 24.0), deadline_s - 1.0)
        world.sleep(there_s)
        if kind == "twice":  # a retransmission by a proxy: the service does it again, now or later
            world.at(world.now_s + world.random.choice((0.0, 0.01, 3.0, 60.0)), lambda: self._unheard("twice"))
            if world.random.random() < 0.5:
                self._unheard("twice")
        try:
            answer = request.call()
        except OSError:
            world.sleep(back_s)
            self._is_done = True
            raise
        world.sleep(back_s)
        if kind in LOST_ANSWERS:
            self._fail(LOST_ANSWERS[kind]())
        self._is_done = True
        return answer if request.after is None else request.after(answer)

    def _fail(self, error: Exception) -> None:
        self._is_done = True
        raise error

    def _unheard(self, how: str) -> None:
        bucket = self.request.world.bucket
        bucket.stray = how
        with contextlib.suppress(OSError):
            self.request.call()
        bucket.stray = ""

    def done(self) -> bool:
        return self._is_done

    def cancel(self) -> None:
        pass


class Client:
    """s3fs, as far as `FsspecStore` calls it; paths are `bucket/key`."""

    loop = None
    retries = 1

    def __init__(self, world: Any, bucket: Bucket):
        self.world, self.bucket = world, bucket

    def _request(self, what: str, path: str, call: Callable[[], Any], *, writes: bool = False) -> Request:
        if self.world.current.process.is_dead:
            raise Killed
        return Request(self.world, what, path, call, writes=writes)

    def _author(self) -> int:
        return self.world.current.process.attempt

    def _pipe_file(self, path: str, data: bytes, mode: str = "overwrite", **options: Any) -> Request:
        author, creates = self._author(), mode == "create"
        what = "create" if creates else "put"
        put = lambda: self.bucket.put(path, bytes(data), creates=creates, author=author)  # noqa: E731
        return self._request(what, path, put, writes=True)

    def _put_file(self, local: str, path: str, **options: Any) -> Request:
        author, content = self._author(), [b""]

        def read() -> None:
            with open(local, "rb") as file:
                content[0] = file.read()

        put = lambda: self.bucket.put(path, content[0], creates=False, author=author)  # noqa: E731
        request = self._request("upload", path, put, writes=True)
        request.before = read
        return request

    def _cat_file(self, path: str, **options: Any) -> Request:
        return self._request("get", path, lambda: self.bucket.get(path))

    def _get_file(self, path: str, local: str, **options: Any) -> Request:
        def write(data: bytes) -> None:
            with open(local, "wb") as file:
                file.write(data)

        request = self._request("download", path, lambda: self.bucket.get(path))
        request.after = write
        return request

    def _info(self, path: str, **options: Any) -> Request:
        return self._request("info", path, lambda: self.bucket.info(path))

    def _ls(self, path: str, **options: Any) -> Request:
        return self._request("ls", path, lambda: self.bucket.ls(path))

    def _find(self, path: str, **options: Any) -> Request:
        return self._request("find", path, lambda: self.bucket.find(path))

    def _rm_file(self, path: str, **options: Any) -> Request:
        author = self._author()
        return self._request("delete", path, lambda: self.bucket.delete(path, author=author), writes=True)
