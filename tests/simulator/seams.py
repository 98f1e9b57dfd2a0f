"""The seams between the real code and the simulated world: the calls of `os`, `io`, `time` and the like, while a task has its turn.

Outside of a world everything is the real thing, so the simulator itself, its imports and its output are untouched.
`install` comes before the first import of the code under test: some of it keeps `time.monotonic` or a lock's class for later.
"""

import builtins
import fcntl
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

from tests.simulator import files
from tests.simulator.scheduler import EPOCH_S, Scheduler
from tests.simulator.threads import Pool, Threads


def enter(world: Scheduler | None) -> None:
    """The world that tasks see from now on; with None the real one is back."""
    files._world = world
    if world is not None:
        Threads.world = world
    for name, call in (_REAL_OS if world is None else _OS).items():
        setattr(os, name, call)


def _kill_signal(pid: int, number: int) -> None:
    process = files._world.current.process
    assert (pid, number) == (process.pid, signal.SIGTERM), "an attempt signals itself alone"
    process.has_sigterm = True


def _set_handler(number: int, handler: Any) -> Any:
    process = files._world.current.process
    before, process.handler = process.handler, handler
    return before if before is not None else signal.SIG_DFL


# ---- installing ----------------------------------------------------------------------------------------------------------


class _Null(io.TextIOBase):
    """The stream to which the control code prints."""

    def write(self, text: str) -> int:
        return len(text)


_OS = {
    **files.OS, "kill": _kill_signal, "getpid": lambda: files._world.current.process.pid,
    "urandom": lambda num: files._world.random.randbytes(num),
}  # fmt: skip
_REAL_OS: dict[str, Any] = {}
_TIME = {
    "monotonic": lambda: files._world.now_s,
    "time": lambda: EPOCH_S + files._world.now_s + files._world.current.process.machine.offset_s,
    "sleep": lambda seconds: files._world.oversleep(seconds),
}
# Of these the modules under test take names, so each is given the simulated ones.
MODULES = (
    "opd.runs.attempts", "opd.runs.lease", "opd.runs.checkpoints", "opd.runs.metrics", "opd.runs.run", "opd.runs.summary",
    "opd.runs.stream", "opd.runs.shards",
    "opd.store.transfer", "opd.store.remote", "opd.pods.stop", "opd.trainer.checkpointing", "opd.update.shards", "opd.cluster.shutdown",
)  # fmt: skip


def _dispatching(real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if files._world is None or files._world.current is None:
            return real(*arguments, **options)
        return simulated(*arguments, **options)

    return call


def _stand_ins() -> None:
    """Replace verl, Ray and torch, which are no part of the control code and take seconds to import."""

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
    builtins.open = io.open = _dispatching(io.open, files.open_file)  # type: ignore[assignment]
    socket.gethostname = _dispatching(socket.gethostname, lambda: files._world.current.process.machine.name)
    fcntl.flock = _dispatching(fcntl.flock, files.flock)
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
    from tests.simulator import bucket

    FirstTry.real, base.Retrying = base.Retrying, FirstTry  # type: ignore[misc]
    remote.asyncio = types.SimpleNamespace(run_coroutine_threadsafe=lambda request, loop: bucket.Future(request))  # type: ignore[attr-defined]
    remote._filesystem = lambda *arguments: files._world.client  # type: ignore[assignment]


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
    """Return a stream that drops what the control code prints."""
    return _Null()
