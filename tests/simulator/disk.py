"""A disk that loses what was not synced: files and folders as a process sees them, and what a power cut leaves of them.

Of a file the bytes of its last fsync are safe. Of a folder each name is safe as the folder's last fsync found it. Everything
later is kept, lost or torn by itself, in any order; a rename never loses the file under both of its names.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import random
import stat as modes
from collections.abc import Callable, Iterator

FOLDER_MODE, FILE_MODE = modes.S_IFDIR | 0o755, modes.S_IFREG | 0o644
_NUMBERS = itertools.count(1)


_text_of = functools.cache(os.strerror)


def failed(code: int, path: str, *, is_injected: bool = False) -> OSError:
    error = OSError(code, _text_of(code), path)
    error.is_injected = is_injected  # type: ignore[attr-defined]
    return error


class Node:
    """A file (`data`) or a folder (`names`); what is not synced yet is `pending` or `versions`."""

    __slots__ = ("data", "is_broken", "is_folder", "modified_s", "names", "number", "pending", "synced", "versions")

    def __init__(self, is_folder: bool, modified_s: float):
        self.number, self.is_folder, self.modified_s = next(_NUMBERS), is_folder, modified_s
        self.data = b""
        # After an fsync that failed the kernel takes the pages for clean: no later one writes them.
        self.is_broken = False
        self.names: dict[str, Node] = {}
        self.synced = b""
        self.pending: list[tuple[int, bytes]] = []
        # Name -> what it led to at the last fsync, then after each change. With a removal by rename: where it went.
        self.versions: dict[str, list[tuple[Node | None, tuple[Node, str] | None]]] = {}

    def point(self, name: str, node: Node | None, moved_to: tuple[Node, str] | None = None) -> None:
        """The name leads to another node, or to none, from now on."""
        self.versions.setdefault(name, [(self.names.get(name), None)]).append((node, moved_to))
        if node is None:
            self.names.pop(name, None)
        else:
            self.names[name] = node

    def sync(self) -> None:
        if self.is_folder:
            self.versions.clear()
        elif not self.is_broken:
            self.synced = self.data
            self.pending.clear()


class Status:
    """The numbers that `os.stat` gives."""

    __slots__ = ("st_dev", "st_ino", "st_mode", "st_mtime", "st_size")

    def __init__(self, device: int, node: Node):
        self.st_dev, self.st_ino, self.st_size, self.st_mtime = device, node.number, len(node.data), node.modified_s
        self.st_mode = FOLDER_MODE if node.is_folder else FILE_MODE


class Disk:
    """One file system, mounted by one machine or by several; paths are tuples of names below its root."""

    def __init__(self, name: str, clock: Callable[[], float]):
        self.name, self.clock = name, clock
        self.root = Node(True, clock())
        self.number = self.root.number
        self.full_until_s = self.read_only_until_s = 0.0

    # ---- reading ---------------------------------------------------------------------------------------------------

    def find(self, path: tuple[str, ...], shown: str) -> Node:
        node = self.root
        try:
            for name in path:
                node = node.names[name]  # a file has none
        except KeyError:
            raise failed(errno.ENOENT if node.is_folder else errno.ENOTDIR, shown) from None
        return node

    def parent(self, path: tuple[str, ...], shown: str) -> tuple[Node, str]:
        folder = self.find(path[:-1], shown)
        if not folder.is_folder:
            raise failed(errno.ENOTDIR, shown)
        return folder, path[-1]

    # ---- changing --------------------------------------------------------------------------------------------------

    def create(self, path: tuple[str, ...], shown: str, *, is_exclusive: bool, truncates: bool) -> Node:
        folder, name = self.parent(path, shown)
        node = folder.names.get(name)
        if node is None:
            node = Node(False, self.clock())
            folder.point(name, node)
        elif is_exclusive:
            raise failed(errno.EEXIST, shown)
        elif node.is_folder:
            raise failed(errno.EISDIR, shown)
        elif truncates and node.data:
            node.data = b""
            node.pending.append((-1, b""))
        return node

    def write(self, node: Node, offset: int, data: bytes) -> None:
        have = node.data
        if offset > len(have):
            have += bytes(offset - len(have))
        node.data = have[:offset] + data + have[offset + len(data) :]
        node.pending.append((offset, data))
        node.modified_s = self.clock()

    def make_folder(self, path: tuple[str, ...], shown: str) -> None:
        if not path:
            raise failed(errno.EEXIST, shown)
        folder, name = self.parent(path, shown)
        if name in folder.names:
            raise failed(errno.EEXIST, shown)
        folder.point(name, Node(True, self.clock()))

    def link(self, source: tuple[str, ...], target: tuple[str, ...], shown: str) -> None:
        node = self.find(source, shown)
        folder, name = self.parent(target, shown)
        if name in folder.names:
            raise failed(errno.EEXIST, shown)
        folder.point(name, node)

    def rename(self, source: tuple[str, ...], target: tuple[str, ...], shown: str) -> None:
        node = self.find(source, shown)
        old, old_name = self.parent(source, shown)
        new, new_name = self.parent(target, shown)
        there = new.names.get(new_name)
        if there is not None:
            if there.is_folder and not node.is_folder:
                raise failed(errno.EISDIR, shown)
            if node.is_folder and not there.is_folder:
                raise failed(errno.ENOTDIR, shown)
            if there.is_folder and there.names:
                raise failed(errno.ENOTEMPTY, shown)
        if there is node:
            return
        new.point(new_name, node)
        old.point(old_name, None, (new, new_name))

    def unlink(self, path: tuple[str, ...], shown: str) -> None:
        folder, name = self.parent(path, shown)
        node = folder.names.get(name)
        if node is None:
            raise failed(errno.ENOENT, shown)
        if node.is_folder:
            raise failed(errno.EISDIR, shown)
        folder.point(name, None)

    def remove_folder(self, path: tuple[str, ...], shown: str) -> None:
        folder, name = self.parent(path, shown)
        node = folder.names.get(name)
        if node is None:
            raise failed(errno.ENOENT, shown)
        if not node.is_folder:
            raise failed(errno.ENOTDIR, shown)
        if node.names:
            raise failed(errno.ENOTEMPTY, shown)
        folder.point(name, None)

    # ---- a power cut -----------------------------------------------------------------------------------------------

    def cut_power(self, draw: random.Random) -> None:
        """Keep what is left when the power comes back."""
        how = draw.random()
        keep = 0.0 if how < 0.35 else 1.0 if how > 0.85 else draw.random()
        chosen: list[tuple[Node, str, int, list]] = []
        for folder in list(self._folders()):
            for name, versions in folder.versions.items():
                last = len(versions) - 1
                index = last if keep == 1.0 else 0 if keep == 0.0 else draw.randint(0, last)
                chosen.append((folder, name, index, versions))
        index_of = {(folder.number, name): index for folder, name, index, _ in chosen}
        for folder, name, index, versions in chosen:
            node, moved_to = versions[index]
            if moved_to is not None:
                node = self._unless_lost(versions, index, moved_to, index_of)
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node
            folder.versions = {}
        for node in self._nodes():
            if not node.is_folder:
                node.data = _torn(node, keep, draw)
                node.synced, node.pending = node.data, []

    @staticmethod
    def _unless_lost(versions: list, index: int, moved_to: tuple[Node, str], index_of: dict) -> Node | None:
        """None where the rename is on the disk, the node under its old name where its new one is not."""
        target, target_name = moved_to
        node = next((node for node, _ in reversed(versions[:index]) if node is not None), None)
        later = target.versions.get(target_name, [])
        made = next((place for place, (found, _) in enumerate(later) if found is node and place > 0), None)
        kept = index_of.get((target.number, target_name))
        return node if made is not None and kept is not None and kept < made else None

    def _folders(self) -> Iterator[Node]:
        """Every folder that a name of now or of an earlier version leads to."""
        seen, waiting = set(), [self.root]
        while waiting:
            folder = waiting.pop()
            if folder.number in seen:
                continue
            seen.add(folder.number)
            yield folder
            found = [*folder.names.values(), *(node for v in folder.versions.values() for node, _ in v if node)]
            waiting += [node for node in found if node.is_folder]

    def _nodes(self) -> Iterator[Node]:
        waiting, seen = [self.root], set()
        while waiting:
            node = waiting.pop()
            if node.number not in seen:
                seen.add(node.number)
                yield node
                waiting += node.names.values()


def _torn(node: Node, keep: float, draw: random.Random) -> bytes:
    """Return the bytes of a file after the cut: the last fsync's, and of each later write all, a piece or nothing."""
    if not node.pending or keep == 1.0:
        return node.data
    data = node.synced
    for offset, piece in node.pending:
        fate = draw.random()
        if keep == 0.0 or fate < 0.4:
            continue
        if offset < 0:
            data = b""
            continue
        if fate < 0.7:
            piece = piece[: draw.randint(0, len(piece))]
        if offset > len(data):
            data += bytes(offset - len(data))
        data = data[:offset] + piece + data[offset + len(piece) :]
    return data
