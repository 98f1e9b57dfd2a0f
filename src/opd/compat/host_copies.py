"""verl's checkpoint of a rank copied to host memory, to be written while the next steps train: verl 0.9.1's FSDP saves block.

torch's own stager makes the copies, which keeps what tensors share, sharded tensors included. Its buffers are replaced by
buffers that are used again at each save, for any storages that the engine has then.
"""

import contextlib
import functools
import logging
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch
from ray._common.utils import get_system_memory
from ray._private.utils import get_used_memory
from torch.cuda._pin_memory_utils import pin_memory, unpin_memory
from torch.distributed.checkpoint._state_dict_stager import StateDictStager

from opd.compat import replaced

logger = logging.getLogger(__name__)

# Of the host's or the container's memory this share stays free: Ray ends processes from 95 % on.
KEPT_FREE = 0.1


class NoRoom(Exception):
    """The host memory for a copy is not there."""


class HostCopies(StateDictStager):
    """A rank's copies of what it saves: as large as its weights, optimizer and extra state, pinned where they come from a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._free: defaultdict[tuple[int, bool], list[torch.UntypedStorage]] = defaultdict(list)
        self._used: list[tuple[tuple[int, bool], torch.UntypedStorage]] = []

    @contextlib.contextmanager
    def taken(self) -> Iterator[list[Callable[[], None]]]:
        """Make `torch.save` to a path only copy, while verl saves. Yield the writes that are left, one call a file.

        They have to be made before the next time. A file for whose copy there is no memory is written at once.
        """
        save, writes = torch.save, list[Callable[[], None]]()
        for key, buffer in self._used:
            self._free[key].append(buffer)
        self._used.clear()

        @functools.wraps(save)
        def copy(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if args or kwargs or not isinstance(f, str | os.PathLike):
                return save(obj, f, *args, **kwargs)
            try:
                writes.append(functools.partial(_write, save, self.stage(obj), os.fspath(f)))
            except NoRoom as error:
                logger.warning(
                    "checkpoint.overlap: %s; %s is written within the step; more memory for the node "
                    "(cluster.worker.requests.memory), or checkpoint.overlap: false",
                    error,
                    os.path.basename(f),
                )
                save(obj, f)
            return None

        with replaced(torch, save=copy):
            yield writes

    def _stage_untyped_storage(self, storage: torch.UntypedStorage, non_blocking: bool = False) -> torch.UntypedStorage:
        key = (storage.nbytes(), storage.is_cuda)
        if found := self._free[key]:
            buffer = found.pop()
        else:
            num_bytes, room = key[0], free_bytes()
            if num_bytes > room:
                raise NoRoom(
                    f"no host memory for the copy of a checkpoint. The next tensor takes {num_bytes / 2**20:.0f} MiB, and "
                    f"{room / 2**20:.0f} MiB are free beyond the reserve of {KEPT_FREE:.0%}"
                )
            buffer = new_buffer(num_bytes, is_pinned=storage.is_cuda)
        buffer.copy_(storage, non_blocking)
        self._used.append((key, buffer))
        return buffer


def new_buffer(num_bytes: int, *, is_pinned: bool) -> torch.UntypedStorage:
    """Return host memory of exactly this size; torch's own pinned memory is rounded up to a power of two."""
    buffer = torch.UntypedStorage(num_bytes)
    if is_pinned and num_bytes:
        try:
            pin_memory(buffer.data_ptr(), num_bytes)
        except RuntimeError as error:  # the copy is slower, and nothing fails
            logger.warning("%d MiB of host memory are not pinned: %s", num_bytes >> 20, error)
        else:
            weakref.finalize(buffer, unpin_memory, buffer.data_ptr()).atexit = False  # CUDA may be gone by then
    return buffer


def free_bytes() -> int:
    """Return the host memory that may be taken now: of the container where there is one, else of the machine."""
    total = int(get_system_memory())
    free = min(total - int(get_used_memory()), int(psutil.virtual_memory().available))
    return max(0, free - int(total * KEPT_FREE))


def _write(save: Callable[..., None], copy: object, path: str) -> None:
    # Through Python's file: a write of its own lets go of the interpreter's lock, torch's to a path does not.
    with open(path, "wb") as file:
        save(copy, file)
