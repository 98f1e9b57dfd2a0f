"""A pool of child processes that answer requests: whatever a request does, its child can be killed and is replaced."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, Self, TypeVar

from opd.redaction import without_secrets

logger = logging.getLogger(__name__)

REAP_TIMEOUT_S = 10.0


class ChildProcess:
    """`python -m MODULE FD ARGUMENTS...`, where FD is the child's end of `connection`.

    One thread may use the connection at a time; `kill` may come from any.
    """

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        ours, theirs = Pipe()
        # A fresh interpreter, not multiprocessing: that would run the parent's main module (Ray's worker) again.
        # -P keeps the current directory off the path; PYTHONPATH: what this process can import, the child can.
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what runs there may print; the driver's standard output is not its
                pass_fds=[theirs.fileno()],
                env=without_secrets(os.environ) | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # a Ctrl-C is the parent's to handle
            )
        self.connection: Connection = ours
        self.pid = self._process.pid

    def receive(self, timeout_s: float) -> Any:
        """What the child sends within this time.

        Raises:
            TimeoutError: nothing came, or the alarm of `isolation.serving.orphan_alarm` has ended the child, which may come
                first where this process stood still.
            EOFError, OSError: the child has ended in any other way.
        """
        try:
            if self.connection.poll(timeout_s):
                return self.connection.recv()
        except (EOFError, OSError):
            if self._exit_code() != -signal.SIGALRM:
                raise
        raise TimeoutError(f"no answer in {timeout_s:g} s")

    def alive(self) -> bool:
        """Whether the process still runs; reaps it where it does not."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End and reap the process with all that it started; idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a group of zombies
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self._process.wait(REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.error("child process %d does not end %g s after SIGKILL", self.pid, REAP_TIMEOUT_S)

    def disconnect(self) -> None:
        """Closes the connection; for the thread that uses it."""
        self.connection.close()

    def exit_status(self) -> str:
        """` with exit status N` of a process that died, or nothing while it has not."""
        code = self._exit_code()
        return "" if code is None else f" with exit status {code}"

    def _exit_code(self) -> int | None:
        try:
            return self._process.wait(REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None


Child = TypeVar("Child", bound=ChildProcess)
Request = TypeVar("Request")
Reply = TypeVar("Reply")


class ProcessPool(ABC, Generic[Child, Request, Reply]):
    """At most `num_processes` children, started when first needed; a request waits only for a free one.

    Each child has a thread of the pool (a daemon, so that a hung child never holds up the process's exit), which gives it
    one request at a time. Safe in any thread and event loop. Close it, or use it as a context manager; at exit it closes
    itself.
    """

    def __init__(self, *, num_processes: int, name: str) -> None:
        self._num_processes = num_processes
        self._name = name
        self._requests: queue.SimpleQueue[tuple[Future[Reply], Request] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._threads: list[threading.Thread] = []
        self._num_busy = 0
        self._closed = False
        self._at_exit = partial(_close_own, self, os.getpid())
        atexit.register(self._at_exit)

    @abstractmethod
    def _spawn(self) -> Child:
        """Start a child; returns at once."""

    def _await_ready(self, child: Child) -> None:
        """Return when a fresh child takes requests; what is raised here is the request's that it was started for."""

    @abstractmethod
    def _ask(self, child: Child, request: Request) -> Reply:
        """What a request comes to. A child killed here, and one behind an exception, is replaced for the next request."""

    @abstractmethod
    def _closed_error(self) -> Exception:
        """What requests to a closed pool raise."""

    def _submit(self, request: Request) -> Future[Reply]:
        """Queue a request; cancelling the future before a child takes it up drops it."""
        future: Future[Reply] = Future()
        with self._lock:
            if self._closed:
                raise self._closed_error()
            self._num_busy += 1
            if self._num_busy > len(self._threads) and len(self._threads) < self._num_processes:
                name = f"opd-{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
                self._threads[-1].start()
            self._requests.put((future, request))
        return future

    def close(self) -> None:
        """Kill and reap every child, and wait for the threads; requests that wait raise. Idempotent."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        """One thread, one child: takes requests until the pool closes."""
        child: Child | None = None
        while (taken := self._requests.get()) is not None:
            future, request = taken
            settle: Callable[[], None] | None = None
            if future.set_running_or_notify_cancel():
                try:
                    child = self._running(child)
                    settle = partial(future.set_result, self._ask(child, request))
                except Exception as error:  # noqa: BLE001  handed to the caller, who awaits the future
                    self._discard(child)
                    child = None
                    settle = partial(future.set_exception, error)
            with self._lock:
                self._num_busy -= 1  # before the caller hears: its next request finds this thread free
            if settle is not None:
                settle()
        self._discard(child)

    def _running(self, child: Child | None) -> Child:
        """A child that is ready: the given one, or a new one where that was killed, or died while idle."""
        if child is not None and child.alive():
            return child
        self._discard(child)
        with self._lock:
            if self._closed:
                raise self._closed_error()
            child = self._spawn()
            self._children.add(child)
        try:
            self._await_ready(child)
        except Exception:
            self._discard(child)
            raise
        return child

    def _discard(self, child: Child | None) -> None:
        if child is None:
            return
        child.kill()
        child.disconnect()
        with self._lock:
            self._children.discard(child)


def _close_own(pool: ProcessPool[Child, Request, Reply], pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits the handler, not the processes
        pool.close()
