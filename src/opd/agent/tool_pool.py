"""The tool pool, parent's side: calls from any event loop, each in a killable process under a deadline."""

import asyncio
import atexit
import logging
import os
import pickle
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from opd.agent.protocol import Ready, ToolCall, ToolReply, WorkerReply, error_text
from opd.agent.toolset import DEFAULT_TOOLSET, load_toolset
from opd.isolation.child_process import ChildProcess

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""A fresh process that imports its tools on a busy machine; 0.3 s on an idle one."""


class ToolPoolError(RuntimeError):
    """Tools cannot be run at all: no fault of a call, so no answer for a model."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"tools cannot be run: {reason}")


class _Request(NamedTuple):
    future: "Future[ToolReply]"
    call: ToolCall
    queued_at: float


class ToolPool:
    """At most `num_processes` processes that answer tool calls; each is replaced after a hang or a death.

    A call waits only for a free process: one that hangs holds up its own process until its deadline and nothing else.
    Safe in any thread and event loop. Close it, or use it as a context manager; at exit it closes itself.

    Args:
        database_dir: the database folder; the hashes of ours are verified here, once.
        num_processes: tool processes, about 40 MB each, started when first needed.
        timeout_s: deadline of one call, from when a process takes it up.
        toolset: module or Python file that defines `TOOLS` (`opd.agent.toolset.load_toolset`).

    Raises:
        ManifestError: the folder is no intact database.
        ImportError: no such toolset.
        ValueError: a number that must be positive and is not.
    """

    def __init__(
        self,
        database_dir: str | Path,
        *,
        num_processes: int,
        timeout_s: float,
        toolset: str = DEFAULT_TOOLSET,
    ) -> None:
        if num_processes < 1:
            raise ValueError(f"num_processes = {num_processes}: must be at least 1")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s = {timeout_s}: must be a positive number of seconds")
        verify_database = load_toolset(toolset).verify_database
        if verify_database is not None:
            verify_database(Path(database_dir))
        self._arguments = (str(Path(database_dir).resolve()), toolset)
        self._num_processes = num_processes
        self._timeout_s = timeout_s
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._processes: set[ChildProcess] = set()
        self._threads: list[threading.Thread] = []
        self._num_busy = 0
        self._closed = False
        self._at_exit = partial(_close_own, self, os.getpid())
        atexit.register(self._at_exit)

    async def call(
        self, name: str, arguments: str | Mapping[str, Any], *, episode_seed: int | None = None
    ) -> ToolReply:
        """Runs one tool.

        Args:
            name: as the model wrote it; an unknown one is an answer with error `unknown_tool`.
            arguments: JSON text as the model wrote it, or parsed.
            episode_seed: the row's `extra_info["episode_seed"]`: whose prices the tools tell.

        Raises:
            ToolPoolError: the pool is closed, or its processes cannot be started.
            TypeError | AttributeError: arguments that cannot be pickled; none that came as JSON.
        """
        return await asyncio.wrap_future(self.submit(name, arguments, episode_seed=episode_seed))

    def submit(
        self, name: str, arguments: str | Mapping[str, Any], *, episode_seed: int | None = None
    ) -> "Future[ToolReply]":
        """`call` for threads; cancelling the future before a process takes it up drops the call."""
        call = ToolCall(str(name), arguments, episode_seed, self._timeout_s)
        request = _Request(Future(), call, time.monotonic())
        with self._lock:
            if self._closed:
                raise ToolPoolError("their pool is closed")
            self._num_busy += 1
            if self._num_busy > len(self._threads) and len(self._threads) < self._num_processes:
                thread = threading.Thread(target=self._serve, name=f"opd-tool-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._requests.put(request)
        return request.future

    def close(self) -> None:
        """Kills and reaps every process; calls under way and waiting raise ToolPoolError. Idempotent."""
        with self._lock:
            self._closed = True
            processes, threads = list(self._processes), list(self._threads)
        for process in processes:
            process.kill()
        for _ in threads:
            self._requests.put(None)
        for thread in threads:
            thread.join()
        atexit.unregister(self._at_exit)

    def __enter__(self) -> "ToolPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        """One thread, one process: takes requests until the pool closes."""
        process: ChildProcess | None = None
        while (request := self._requests.get()) is not None:
            if request.future.set_running_or_notify_cancel():
                try:
                    process = self._running(process)
                    reply, healthy = self._run(process, request)
                    request.future.set_result(reply)
                    if not healthy:
                        self._discard(process)
                        process = None
                except Exception as error:  # noqa: BLE001  handed to the caller, who awaits the future
                    self._discard(process)
                    process = None
                    request.future.set_exception(error)
            with self._lock:
                self._num_busy -= 1
        self._discard(process)

    def _run(self, process: ChildProcess, request: _Request) -> tuple[ToolReply, bool]:
        """The reply, and whether the process may go on."""
        started = time.monotonic()
        queued_s = started - request.queued_at
        name = request.call.name
        try:
            message = pickle.dumps(request.call)
        except RecursionError:
            text = error_text("bad_arguments", f"the arguments of {name} are nested too deeply")
            return ToolReply(text, "bad_arguments", time.monotonic() - started, queued_s), True
        try:
            process.connection.send_bytes(message)
            if process.connection.poll(self._timeout_s):
                answer: WorkerReply = process.connection.recv()
                if answer.fault is not None:
                    logger.warning("tool %s raised %s", name, answer.fault)
                return ToolReply(answer.text, answer.error, time.monotonic() - started, queued_s), True
        except (EOFError, OSError):
            if self._closed:
                raise ToolPoolError("their pool was closed") from None
            logger.warning("tool %s: its process died%s; it is replaced", name, process.exit_status())
            text = error_text("crashed", f"{name} failed: its process died; try other arguments or another tool")
            return ToolReply(text, "crashed", time.monotonic() - started, queued_s), False
        logger.warning("tool %s gave no answer in %g s: its process is killed and replaced", name, self._timeout_s)
        process.kill()
        text = error_text(
            "timeout", f"{name} gave no answer in {self._timeout_s:g} s; try other arguments or another tool"
        )
        return ToolReply(text, "timeout", time.monotonic() - started, queued_s), False

    def _running(self, process: ChildProcess | None) -> ChildProcess:
        """A process that is ready for a call: the given one, or a new one where that died while idle."""
        if process is not None and process.alive():
            return process
        self._discard(process)
        with self._lock:
            if self._closed:
                raise ToolPoolError("their pool is closed")
            process = ChildProcess("opd.agent.tool_worker", self._arguments)
            self._processes.add(process)
        try:
            if process.connection.poll(START_TIMEOUT_S) and isinstance(process.connection.recv(), Ready):
                return process
            reason = f"not ready after {START_TIMEOUT_S:g} s"
        except (EOFError, OSError):
            reason = f"ended{process.exit_status()} before it was ready"
        self._discard(process)
        raise ToolPoolError(f"a tool process {reason}; its standard error says why")

    def _discard(self, process: ChildProcess | None) -> None:
        if process is None:
            return
        process.kill()
        process.disconnect()
        with self._lock:
            self._processes.discard(process)


def _close_own(pool: ToolPool, pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits the handler, not the processes
        pool.close()
