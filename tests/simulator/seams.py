"""Where the real code meets the simulated world: the calls of `os`, `io`, `time` and the like, while a task has its turn.

Outside of a world everything is the real thing, so the simulator itself, its imports and its output are untouched.
`install` comes before the first import of the code under test: some of it keeps `time.monotonic` or a lock's class for later.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import functools
import glob
import importlib
import io
import os
import shutil
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

from tests.simulator.disk import Disk, Node, Status, failed
from tests.simulator.scheduler import EPOCH_S, Killed, Pool, Scheduler, Threads

BUFFER_BYTES = 8192
_world: Any = None


def enter(world: Scheduler | None) -> None:
    """The world that tasks see from now on; with None the real one is back."""
    global _world
    _world = world
    if world is not None:
        Threads.world = world
    for name, call in (_REAL_OS if world is None else _OS).items():
        setattr(os, name, call)


# ---- files ---------------------------------------------------------------------------------------------------------------


class OpenFile:
    """What a descriptor stands for."""

    __slots__ = ("appends", "disk", "lock", "node", "path", "position", "shown")

    def __init__(self, disk: Disk, node: Node, path: tuple[str, ...], shown: str, appends: bool):
        self.disk, self.node, self.path, self.shown, self.appends = disk, node, path, shown, appends
        self.position = 0
        self.lock = 0


def _changed(name: str, *paths: str) -> None:
    if _world.changes is not None:
        _world.changes.append((name, paths))


def _parse(text: str) -> tuple[str, tuple[str, ...]]:
    """Of a path the mount, and the names below it."""
    _, _, below = text.partition("/")
    mount, *names = below.split("/")
    return mount, tuple(filter(None, names))


_parsed = functools.lru_cache(50_000)(_parse)


def _place(path: Any) -> tuple[Disk, tuple[str, ...], str]:
    text = path if type(path) is str else os.fspath(path)
    mount, names = _parsed(text)
    disk = _world.current.process.machine.mounts.get(mount)
    if disk is None or text[:1] != "/":
        raise failed(errno.ENOENT, text)
    return disk, names, text


BOOT_ID = "/proc/sys/kernel/random/boot_id"


def _stat(path: Any, **options: Any) -> Any:
    if type(path) is int:
        return _fstat(path)
    text = path if type(path) is str else os.fspath(path)
    if text == BOOT_ID:
        return Status(0, Node(False, 0.0))
    disk, parts, text = _place(text)
    _world.disk_call("stat", disk, parts, text, writes=False)
    return Status(disk.number, disk.find(parts, text))


def _open_descriptor(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
    disk, parts, text = _place(path)
    process = _world.current.process
    if flags & os.O_CREAT:
        _world.disk_call("create", disk, parts, text, writes=True)
        node = disk.create(parts, text, is_exclusive=bool(flags & os.O_EXCL), truncates=bool(flags & os.O_TRUNC))
        _changed("create", text)
    else:
        _world.disk_call("open", disk, parts, text, writes=False)
        node = disk.find(parts, text)
    process.next_file += 1
    process.files[process.next_file] = OpenFile(disk, node, parts, text, bool(flags & os.O_APPEND))
    return process.next_file


def _file(descriptor: int) -> OpenFile:
    process = _world.current.process
    if process.is_dead:
        raise Killed
    try:
        return process.files[descriptor]
    except KeyError:
        raise failed(errno.EBADF, str(descriptor)) from None


def _close(descriptor: int) -> None:
    _file(descriptor)
    del _world.current.process.files[descriptor]


def _write(descriptor: int, data: bytes) -> int:
    if descriptor <= 2:  # the console
        return len(data)
    file = _file(descriptor)
    length = _world.disk_call("write", file.disk, file.path, "", writes=True, num_bytes=len(data))
    if length is not None:  # a full disk takes a part first
        data = data[:length]
    offset = len(file.node.data) if file.appends else file.position
    file.disk.write(file.node, offset, bytes(data))
    _changed("write", file.shown)
    file.position = offset + len(data)
    return len(data)


def _fsync(descriptor: int) -> None:
    file = _file(descriptor)
    name = "sync folder" if file.node.is_folder else "sync"
    try:
        _world.disk_call(name, file.disk, file.path, "", writes=True)
    except OSError:
        file.node.is_broken = not file.node.is_folder
        raise
    file.node.sync()
    _changed("sync", file.shown)


def _flock(descriptor: int, operation: int) -> None:
    """Of a machine's living processes: a kernel does not know the locks of another. Nobody waits for one."""
    file, here = _file(descriptor), _world.current.process
    _world.disk_call("lock", file.disk, file.path, "", writes=False)
    for process in here.machine.processes.values():
        for other in process.files.values():
            if (
                other is not file
                and other.node is file.node
                and other.lock
                and fcntl.LOCK_EX & (other.lock | operation)
            ):
                raise failed(errno.EWOULDBLOCK, file.shown)
    file.lock = operation & (fcntl.LOCK_EX | fcntl.LOCK_SH)


def _fstat(descriptor: int) -> Any:
    file = _file(descriptor)
    return Status(file.disk.number, file.node)


def _changing(name: str, change: str) -> Callable[..., None]:
    def call(path: Any, *arguments: Any, **options: Any) -> None:
        disk, parts, text = _place(path)
        _world.disk_call(name, disk, parts, text, writes=True)
        getattr(disk, change)(parts, text)
        _changed(name, text)

    return call


def _two_paths(name: str, change: str) -> Callable[..., None]:
    def call(source: Any, target: Any, **options: Any) -> None:
        disk, parts, text = _place(source)
        other, target_parts, target_text = _place(target)
        _world.disk_call(name, other, target_parts, target_text, writes=True)
        if disk is not other:
            raise failed(errno.EXDEV, text)
        getattr(disk, change)(parts, target_parts, f"{text} -> {target_text}")
        _changed(name, text, target_text)

    return call


def _folder(path: Any) -> tuple[Node, str]:
    disk, parts, text = _place(path)
    _world.disk_call("list", disk, parts, text, writes=False)
    node = disk.find(parts, text)
    if not node.is_folder:
        raise failed(errno.ENOTDIR, text)
    return node, text


def _listdir(path: Any = ".") -> list[str]:
    return list(_folder(path)[0].names)


class Entry:
    """`os.DirEntry`."""

    __slots__ = ("_node", "name", "path")

    def __init__(self, folder: str, name: str, node: Node):
        self.name, self.path, self._node = name, f"{folder}/{name}", node

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._node.is_folder

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self._node.is_folder

    def is_symlink(self) -> bool:
        return False

    def is_junction(self) -> bool:
        """Of Python 3.12 and later, whose `shutil.rmtree` asks it."""
        return False

    def __fspath__(self) -> str:
        return self.path


class Scan:
    """`os.scandir`."""

    def __init__(self, path: Any):
        node, text = _folder(path)
        self._entries = iter([Entry(text, name, found) for name, found in node.names.items()])

    def __iter__(self) -> Scan:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass


def _statvfs(path: Any) -> Any:
    disk = _place(path)[0]
    free = 0 if disk.full_until_s > _world.now_s else 2**20
    return types.SimpleNamespace(f_bavail=free, f_frsize=4096, f_blocks=2**21)


_FLAGS = {
    "r": os.O_RDONLY,
    "w": os.O_CREAT | os.O_TRUNC,
    "x": os.O_CREAT | os.O_EXCL,
    "a": os.O_CREAT | os.O_APPEND,
}


class File:
    """`open`'s answer: a buffered file, binary or text."""

    def __init__(self, path: Any, mode: str):
        flags = _FLAGS[mode[0]]
        text = path if type(path) is str else os.fspath(path)
        self._text = "b" not in mode
        self._buffer = b""
        self._descriptor: int | None = None
        if text == BOOT_ID:
            self._found: bytes | None = _world.current.process.machine.boot_id.encode()
            return
        self._found = None
        self._descriptor = _open_descriptor(text, flags)
        self._open = _file(self._descriptor)
        if mode[0] == "r" and self._open.node.is_folder:
            _close(self._descriptor)
            raise failed(errno.EISDIR, text)

    def fileno(self) -> int:
        return self._descriptor  # type: ignore[return-value]

    def readable(self) -> bool:
        return True

    def _take(self, num_bytes: int | None) -> bytes:
        if self._found is not None:
            found, self._found = self._found, b""
            return found
        file = self._open
        _world.disk_call("read", file.disk, file.path, "", writes=False)
        end = None if num_bytes is None or num_bytes < 0 else file.position + num_bytes
        data = file.node.data[file.position : end]
        file.position += len(data)
        return data

    def getbuffer(self) -> bytes:
        """For `hashlib.file_digest`, whose buffer of 256 KiB would take longer than everything else about these files."""
        return self._take(None)

    def read(self, num_bytes: int | None = None) -> Any:
        data = self._take(num_bytes)
        return data.decode() if self._text else data

    def readinto(self, buffer: Any) -> int:
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, position: int) -> int:
        self.flush()
        self._open.position = position
        return position

    def tell(self) -> int:
        return self._open.position + len(self._buffer)

    def write(self, data: Any) -> int:
        self._buffer += data.encode() if self._text else bytes(data)
        if len(self._buffer) > BUFFER_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        while self._buffer:
            data, self._buffer = self._buffer, b""  # what failed is not tried again at close
            num = _write(self._descriptor, data)  # type: ignore[arg-type]
            self._buffer = data[num:]

    def close(self) -> None:
        if self._descriptor is not None:
            try:
                self.flush()
            finally:
                descriptor, self._descriptor = self._descriptor, None
                _close(descriptor)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Any:
        return iter(self.read().splitlines(keepends=True))


def _open(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
    return File(file, mode)


def _kill_signal(pid: int, number: int) -> None:
    process = _world.current.process
    assert (pid, number) == (process.pid, signal.SIGTERM), "an attempt signals itself alone"
    process.has_sigterm = True


def _set_handler(number: int, handler: Any) -> Any:
    process = _world.current.process
    before, process.handler = process.handler, handler
    return before if before is not None else signal.SIG_DFL


# ---- installing ----------------------------------------------------------------------------------------------------------


class _Null(io.TextIOBase):
    """Where the control code prints."""

    def write(self, text: str) -> int:
        return len(text)


_OS = {
    "stat": _stat, "lstat": _stat, "open": _open_descriptor, "close": _close, "write": _write, "fsync": _fsync,
    "fstat": _fstat, "mkdir": _changing("mkdir", "make_folder"), "rmdir": _changing("rmdir", "remove_folder"),
    "unlink": _changing("unlink", "unlink"), "remove": _changing("unlink", "unlink"),
    "rename": _two_paths("rename", "rename"), "replace": _two_paths("rename", "rename"),
    "link": _two_paths("link", "link"), "listdir": _listdir, "scandir": Scan, "statvfs": _statvfs,
    "kill": _kill_signal, "getpid": lambda: _world.current.process.pid,
    "urandom": lambda num: _world.random.randbytes(num),
}  # fmt: skip
_REAL_OS: dict[str, Any] = {}
_TIME = {
    "monotonic": lambda: _world.now_s,
    "time": lambda: EPOCH_S + _world.now_s + _world.current.process.machine.offset_s,
    "sleep": lambda seconds: _world.oversleep(seconds),
}
# Of these the modules under test take names, so each is given the simulated ones.
MODULES = (
    "opd.runs.process", "opd.runs.attempts", "opd.runs.checkpoints", "opd.runs.claim", "opd.runs.metrics", "opd.runs.run", "opd.runs.summary",
    "opd.runs.stream", "opd.runs.shards", "opd.runs.resume",
    "opd.store.transfer", "opd.store.remote", "opd.pods.stop", "opd.update.checkpointing", "opd.update.shards", "opd.cluster.shutdown",
)  # fmt: skip


def _dispatching(real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if _world is None or _world.current is None:
            return real(*arguments, **options)
        return simulated(*arguments, **options)

    return call


def _stand_ins() -> None:
    """verl, Ray and torch are no part of the control code, and take seconds to import: what it takes of them stands in."""

    def module(name: str, **names: Any) -> None:
        made = types.ModuleType(name)
        made.__dict__.update(names)
        sys.modules[name] = made

    def register(**options: Any) -> Callable[[Any], Any]:
        return lambda method: method

    for package in ("ray", "verl", "verl.single_controller", "verl.single_controller.base"):
        module(package, __path__=[])
    sys.modules["verl.single_controller.base"].WorkerGroup = object  # type: ignore[attr-defined]
    from opd.errors import PartLost

    # What a call of a dead rank raises here; it says nothing about a checkpoint.
    module("ray.exceptions", RayActorError=PartLost)
    dispatch = types.SimpleNamespace(ONE_TO_ALL=0)
    module("verl.single_controller.base.decorator", Dispatch=dispatch, register=register)
    from contextlib import nullcontext

    # The files of the simulated ranks are text, so torch's own reading of them is left out.
    from tests.simulator.copies import HostCopies

    module("opd.compat.host_copies", HostCopies=HostCopies)
    module("opd.compat.plain_loads", plain_loads=nullcontext, find_unloadable=lambda folder, paths: [])


def install() -> None:
    """Once in a process, which is the simulator's own from then on."""
    for library in (
        "fsspec",
        "s3fs",
        "botocore.exceptions",
        "aiohttp",
        "tenacity",
        "pydantic",
        "omegaconf",
        "concurrent.futures",
    ):
        importlib.import_module(library)
    _REAL_OS.update({name: getattr(os, name) for name in _OS})
    for name, simulated in _TIME.items():
        setattr(time, name, _dispatching(getattr(time, name), simulated))
    builtins.open = io.open = _dispatching(io.open, _open)  # type: ignore[assignment]
    socket.gethostname = _dispatching(socket.gethostname, lambda: _world.current.process.machine.name)
    fcntl.flock = _dispatching(fcntl.flock, _flock)
    signal.signal = _dispatching(signal.signal, _set_handler)
    shutil._use_fd_functions = shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
    globber = getattr(glob, "_StringGlobber", None)
    if globber is not None:  # `Path.glob` of Python 3.13, which keeps the calls of its import
        globber.lstat = staticmethod(lambda path: os.lstat(path))
        globber.scandir = staticmethod(lambda path: os.scandir(path))
    _stand_ins()
    real = threading.Lock, threading.Event
    threading.Lock, threading.Event = Threads.Lock, Threads.Event  # type: ignore[assignment,misc]
    try:
        modules = [importlib.import_module(name) for name in MODULES]
    finally:
        threading.Lock, threading.Event = real  # type: ignore[misc]
    for module in modules:
        if hasattr(module, "threading"):
            module.threading = Threads  # type: ignore[attr-defined]
        if hasattr(module, "ThreadPoolExecutor"):
            module.ThreadPoolExecutor = Pool  # type: ignore[attr-defined]
    from opd.store import base, remote
    from opd.update import checkpointing
    from tests.simulator import bucket

    FirstTry.real, base.Retrying = base.Retrying, FirstTry  # type: ignore[misc]
    remote.asyncio = bucket.Asyncio  # type: ignore[attr-defined]
    remote._filesystem = lambda *arguments: _world.client  # type: ignore[assignment]
    checkpointing.open_dict = lambda config: __import__("contextlib").nullcontext()  # type: ignore[assignment]


class FirstTry:
    """`tenacity.Retrying`, which is slow to build: left out for a call that succeeds at once."""

    real: Any

    def __init__(self, **options: Any):
        self._options = options

    def __call__(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - tenacity decides about it
            first = [error]

        def again() -> Any:
            if first:
                raise first.pop()
            return call()

        return FirstTry.real(**self._options)(again)


def silence() -> io.TextIOBase:
    """What the control code prints goes nowhere."""
    return _Null()
