"""A pool of child processes that answer requests under a deadline: a child that hangs or dies is replaced."""

import atexit
import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from opd.isolation.serving import REFUSED
from opd.redaction import without_secrets

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""Longest start of a child, imports included."""
REAP_TIMEOUT_S = 10.0


class ChildProcess:
    """`python -m MODULE FD ARGUMENTS...`, where FD is the child's end of `connection`.

    One thread uses the connection at a time; any thread may call `kill`.
    """

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        ours, theirs = Pipe()
        # A fresh interpreter, not multiprocessing: that would run the parent's main module (Ray's worker) again.
        # -P keeps the current directory off the path; PYTHONPATH: what this process can import, the child can.
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=2,  # the driver's standard output is not the child's
                pass_fds=[theirs.fileno()],
                env=without_secrets(os.environ) | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # a Ctrl-C is the parent's to handle
            )
        self.connection: Connection = ours
        self.pid = self._process.pid
        self.has_started = False
        """It has answered a request."""

    def receive(self, timeout_s: float) -> Any:
        """Return what the child sends within this time.

        Raises:
            TimeoutError: nothing came.
            EOFError, OSError: the child has ended.
        """
        if self.connection.poll(timeout_s):
            return self.connection.recv()
        raise TimeoutError(f"no answer in {timeout_s:g} s")

    def alive(self) -> bool:
        """Return whether the process still runs; reap it where it does not."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End and reap the process with all that it started; idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a group of zombies
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self._process.wait(REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.error("child process %d does not end %g s after SIGKILL", self.pid, REAP_TIMEOUT_S)

    def exit_status(self) -> str:
        """Return ` with exit status N` of a process that died, else an empty text."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f" with exit status {self._process.wait(REAP_TIMEOUT_S)}"
        return ""


class Outcome(NamedTuple):
    """The end of a request."""

    value: Any = None
    """The result; of a refused request the exception to raise."""
    failure: Literal["late", "died", "not_started", "refused"] | None = None
    """`late`: killed at its deadline; `not_started`: the process never took a request."""
    reason: str = ""
    note: Any = None
    """The note that the child sent before the call."""
    seconds: float = 0.0
    """Time from the start of the call, without the wait for a process."""


class _Request(NamedTuple):
    future: Future[Outcome]
    payload: bytes
    timeout_s: float | None


class ProcessPool:
    """At most `num_processes` children, started when first needed; a request waits only for a free one.

    Each child has a thread of the pool, which gives it one request at a time. The thread is a daemon, so that a hung child
    never delays the exit. Safe in any thread and event loop. The pool closes itself at exit.

    Args:
        server: `module:function` of the child (`opd.isolation.serving`).
        arguments: texts for the function.
    """

    def __init__(self, server: str, arguments: Sequence[str] = (), *, num_processes: int, name: str) -> None:
        self._arguments = (server, *arguments)
        self._num_processes = num_processes
        self._name = name
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._children: set[ChildProcess] = set()
        self._threads: list[threading.Thread] = []
        self._num_busy = 0
        self._closed = False
        self._at_exit = partial(_close_own, self, os.getpid())
        atexit.register(self._at_exit)

    def submit(self, request: Any, timeout_s: float | None) -> Future[Outcome]:
        """Queue a request; cancelling the future before a child takes it drops it.

        Args:
            timeout_s: deadline from the start of the call; None means that the child only prepares the call.

        Raises:
            RuntimeError: the pool is closed.
            TypeError | AttributeError | PicklingError: the request cannot be pickled.
        """
        queued = _Request(Future(), pickle.dumps((request, timeout_s)), timeout_s)
        with self._lock:
            if self._closed:
                raise self._closed_error()
            self._num_busy += 1
            if self._num_busy > len(self._threads) and len(self._threads) < self._num_processes:
                name = f"opd-{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
                self._threads[-1].start()
            self._requests.put(queued)
        return queued.future

    def close(self) -> None:
        """Kill and reap every child, and wait for the threads; waiting requests raise. Idempotent."""
        with self._lock:
            self._closed = True
            children, threads = list(self._children), list(self._threads)
        for child in children:
            child.kill()
        for _ in threads:
            self._requests.put(None)
        for thread in threads:
            thread.join()
        atexit.unregister(self._at_exit)

    def _closed_error(self) -> Exception:
        return RuntimeError(f"the {self._name} pool is closed")

    def _serve(self) -> None:
        """Take requests until the pool closes, as one thread with one child."""
        child: ChildProcess | None = None
        while (request := self._requests.get()) is not None:
            settle: Callable[[], None] | None = None
            if request.future.set_running_or_notify_cancel():
                try:
                    child = self._running(child)
                    settle = partial(request.future.set_result, self._ask(child, request))
                except Exception as error:  # noqa: BLE001  the caller awaits it at the future
                    self._discard(child)
                    child = None
                    settle = partial(request.future.set_exception, error)
            with self._lock:
                self._num_busy -= 1  # before the caller hears: its next request finds this thread free
            if settle is not None:
                settle()
        self._discard(child)

    def _ask(self, child: ChildProcess, request: _Request) -> Outcome:
        """Return the end of a request; a child that is late or dies is killed."""
        started, note, limit_s = time.monotonic(), None, START_TIMEOUT_S
        try:
            child.connection.send_bytes(request.payload)
            kind, *said = child.receive(limit_s)
            child.has_started = True
            if kind == REFUSED:
                return Outcome(said[0](said[1]), "refused", said[1])
            (note,) = said
            if request.timeout_s is None:
                return Outcome(note=note)
            started, limit_s = time.monotonic(), request.timeout_s
            return Outcome(child.receive(limit_s), note=note, seconds=time.monotonic() - started)
        except (EOFError, OSError) as error:
            if self._closed:
                raise self._closed_error() from None
            seconds = time.monotonic() - started
            child.kill()
            if isinstance(error, TimeoutError):
                failure, reason = "late", f"no answer in {limit_s:g} s"
            else:
                failure, reason = "died", f"its process died{child.exit_status()}"
            if not child.has_started:
                failure, reason = "not_started", f"{reason} before it took a request"
            return Outcome(None, failure, reason, note, seconds)  # type: ignore[arg-type]

    def _running(self, child: ChildProcess | None) -> ChildProcess:
        """Return a child: the given one, or a new one where that was killed, or died while idle."""
        if child is not None and child.alive():
            return child
        self._discard(child)
        with self._lock:
            if self._closed:
                raise self._closed_error()
            child = ChildProcess("opd.isolation.serving", self._arguments)
            self._children.add(child)
        return child

    def _discard(self, child: ChildProcess | None) -> None:
        if child is None:
            return
        child.kill()
        child.connection.close()
        with self._lock:
            self._children.discard(child)


def _close_own(pool: ProcessPool, pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits the handler, not the processes
        pool.close()
