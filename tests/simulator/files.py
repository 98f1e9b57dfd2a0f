"""The simulated disks for the calls of `os` and `open`, for the task that has its turn."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import types
from collections.abc import Callable
from typing import Any

from tests.simulator.disk import Disk, Node, Status, failed
from tests.simulator.scheduler import Killed

BUFFER_BYTES = 8192
_world: Any = None
"""The world that tasks see; None outside of one."""


class OpenFile:
    """The file of a descriptor."""

    __slots__ = ("appends", "disk", "lock", "node", "path", "position", "shown")

    def __init__(self, disk: Disk, node: Node, path: tuple[str, ...], shown: str, appends: bool):
        self.disk, self.node, self.path, self.shown, self.appends = disk, node, path, shown, appends
        self.position = 0
        self.lock = 0


def _parse(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the mount of a path, and the names below it."""
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


def flock(descriptor: int, operation: int) -> None:
    """Lock a file for one of a machine's living processes: a kernel does not know the locks of another. No call waits."""
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

    return call


def _two_paths(name: str, change: str) -> Callable[..., None]:
    def call(source: Any, target: Any, **options: Any) -> None:
        disk, parts, text = _place(source)
        other, target_parts, target_text = _place(target)
        _world.disk_call(name, other, target_parts, target_text, writes=True)
        if disk is not other:
            raise failed(errno.EXDEV, text)
        getattr(disk, change)(parts, target_parts, f"{text} -> {target_text}")

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
        """Answer `shutil.rmtree` of Python 3.12 and later."""
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


_FLAGS = {"r": os.O_RDONLY, "w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT | os.O_APPEND}


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


def open_file(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
    return File(file, mode)


OS = {
    "stat": _stat, "lstat": _stat, "open": _open_descriptor, "close": _close, "write": _write, "fsync": _fsync,
    "fstat": _fstat, "mkdir": _changing("mkdir", "make_folder"), "rmdir": _changing("rmdir", "remove_folder"),
    "unlink": _changing("unlink", "unlink"), "remove": _changing("unlink", "unlink"),
    "rename": _two_paths("rename", "rename"), "replace": _two_paths("rename", "rename"),
    "link": _two_paths("link", "link"), "listdir": _listdir, "scandir": Scan, "statvfs": _statvfs,
}  # fmt: skip
