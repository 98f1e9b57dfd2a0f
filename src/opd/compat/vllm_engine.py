"""vLLM's engine forked from a process that imported vLLM while the models loaded; vLLM 0.24.0 in a server of verl 0.9.1 spawns it afterwards.

A spawned one imports vLLM again, for 8 to 11 s in which nothing else happens. Here the server's constructor starts a fork server of Python's
(`multiprocessing`), which imports (`opd.compat.vllm_imports`) and takes no device, and the engine is a fork of it. It gets the environment of its
launch, ends when its server's process ends, and the server sees its death. Where it cannot be forked it is spawned, and a line of the log says why.
vLLM's workers in processes of their own (`distributed_executor_backend: mp`) are spawned by the engine as they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

_IMPORTS = "opd.compat.vllm_imports"
_WAIT_S = 120.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FORK_SERVER: Any = forkserver._forkserver  # of this process; Python 3.11 to 3.13 name what is read of it alike


def server_of(server: type[Any]) -> type[Any]:
    """verl's `vLLMHttpServer`, whose engine is forked."""

    class Server(server):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)  # sets the environment in which vLLM is to be imported
            if self.node_rank == 0:  # the others make no engine
                forkserver.set_forkserver_preload([_IMPORTS])
                with contextlib.suppress(Exception):  # tried again at the launch, and told then
                    forkserver.ensure_running()

        async def run_server(self, args: Any) -> None:
            from vllm.v1.engine import utils

            spawning = utils.get_mp_context

            def forking() -> _Context:
                spawning()  # for what it sets in the environment
                return _Context()

            # NUMA nodes are bound by the program that is spawned in Python's place.
            if not args.numa_bind and await _forks():
                utils.get_mp_context = forking
            try:
                await super().run_server(args)
            finally:
                utils.get_mp_context = spawning

    return Server


async def _forks() -> bool:
    """Whether the fork server has imported what it should, and a child of it can be an engine; otherwise it is ended."""
    try:
        reason = await asyncio.wait_for(asyncio.to_thread(_ask), timeout=_WAIT_S)
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being forked, it can be spawned
        reason = repr(error)
    if reason:
        print(f"vLLM's engine is spawned, and imports vLLM first: {reason}", flush=True)
        if pid := _FORK_SERVER._forkserver_pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return not reason


def _ask() -> str:
    reader, writer = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("forkserver").Process(target=_answer, args=(writer,), daemon=True)
    child.start()
    writer.close()
    reason: str = reader.recv()
    child.join()
    return reason


def _answer(writer: Any) -> None:
    """In a child of the fork server: why an engine should not be one, or nothing."""
    imports, platforms = (sys.modules.get(name) for name in (_IMPORTS, "vllm.platforms"))
    if imports is None or platforms is None or "vllm.v1.engine.core" not in sys.modules:
        writer.send("the fork server could not import it")
    elif imports.NUM_THREADS > 1:
        writer.send(f"the fork server has {imports.NUM_THREADS} threads")
    elif not platforms.current_platform.is_cpu() and _has_device():
        writer.send("the fork server has taken a device")
    else:
        writer.send("")


def _has_device() -> bool:
    """Whether a device was used in the process that this one was forked from, whose driver then refuses this one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # another vendor's device
        return bool(sys.modules["torch"].cuda._is_in_bad_fork())
    return bool(driver.cuInit(0))


class _Environment:
    """The environment of the process that pickles it, which the one that unpickles it then has."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_environment, (dict(os.environ),)


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


class _Engine(ForkServerProcess):
    _forked_by: int

    def __getstate__(self) -> dict[str, Any]:
        # The environment is set before the rest, vLLM's config, is unpickled.
        return {"_environment": _Environment(), **self.__dict__, "_forked_by": _FORK_SERVER._forkserver_pid}

    def run(self) -> None:
        # A fork server ends when all have closed this file, of which each child has a copy: closed here, the vLLM server's death ends
        # the fork server, and the fork server's ends this process.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._forked_by:  # it died before the call
            return
        os.close(_FORK_SERVER._forkserver_alive_fd)
        super().run()


class _Context(ForkServerContext):
    Process = _Engine
