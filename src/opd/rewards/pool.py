"""The parent's side of the killable scorer pool: lazily started worker processes, a deadline each, no survivors."""

import atexit
import logging
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from opd.rewards.scorers import Score

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""A fresh process importing a scorer's libraries on a busy machine; math-verify takes 0.5 s on an idle one."""
KILL_WAIT_S = 10.0


class PoolTask(NamedTuple):
    """One answer to score, as it travels to a worker."""

    function: str
    data_source: str
    solution: str
    ground_truth: Any
    extra_info: dict[str, Any]
    kwargs: dict[str, Any]


class Failure(NamedTuple):
    """Why an answer has no score."""

    reason: str


class Started(NamedTuple):
    """A worker has its scorer imported and begins: the deadline's clock starts here."""


class ConfigurationFault(NamedTuple):
    """A worker cannot import the scorer or call it with these arguments: raised in the caller, never scored 0."""

    kind: str
    message: str


class ScorerPool:
    """At most `num_workers` processes that score; each is replaced after a hang or a death. Safe in any thread."""

    def __init__(self, *, num_workers: int) -> None:
        # Last in, first out: a second process starts only when the first is busy. None = a process not yet started.
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(num_workers):
            self._idle.put(None)
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._closed = False
        self.threads = ThreadPoolExecutor(max_workers=num_workers, thread_name_prefix="opd-score")
        """For callers in an event loop: as many threads as can ever be scoring."""

    def score(self, task: PoolTask, *, timeout_s: float) -> Score | Failure:
        """Scores one answer, killing the worker at the deadline.

        Raises:
            ImportError | TypeError: the scorer cannot be imported or called with these arguments.
            RuntimeError: no worker could be started, or the pool is closed.
        """
        worker = self._idle.get()
        keep: _Worker | None = None
        try:
            if worker is None or not worker.alive():
                if worker is not None:  # died while idle, through no fault of this answer
                    self._discard(worker)
                worker = self._start()
            try:
                result = worker.run(task, timeout_s=timeout_s)
            except WorkerLost as lost:
                self._discard(worker)
                return Failure(lost.reason)
            keep = worker
            return result
        finally:
            self._idle.put(keep)

    def close(self) -> None:
        """Kills and reaps every worker; the pool takes no more work."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            self._discard(worker)
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> "_Worker":
        with self._lock:
            if self._closed:
                raise RuntimeError("the scorer pool is closed")
            worker = _Worker()
            self._workers.add(worker)
        return worker

    def _discard(self, worker: "_Worker") -> None:
        worker.kill()
        with self._lock:
            self._workers.discard(worker)


class WorkerLost(Exception):
    """A worker hung past its deadline or died."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Worker:
    """One worker process and the connection to it."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        # -P: no current directory on the path; PYTHONPATH: what this process can import, the worker can.
        command = [sys.executable, "-P", "-m", "opd.rewards.worker", str(theirs.fileno())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,  # scorers print; the driver's standard output is not theirs
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,  # a Ctrl-C is the parent's to handle
            )
        self._connection: Connection = ours

    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, task: PoolTask, *, timeout_s: float) -> Score | Failure:
        try:
            self._connection.send((task, timeout_s))
            message = self._receive(START_TIMEOUT_S, "start")
            if isinstance(message, Started):
                message = self._receive(timeout_s, "score")
        except (EOFError, ConnectionError) as error:
            raise WorkerLost(f"scorer process died{self._exit_status()}") from error
        if isinstance(message, ConfigurationFault):
            raise (ImportError if message.kind == "ImportError" else TypeError)(message.message)
        return message

    def _receive(self, timeout_s: float, what: str) -> Any:
        if not self._connection.poll(timeout_s):
            raise WorkerLost(f"no end after {timeout_s:g} s ({what}); the process was killed")
        return self._connection.recv()

    def _exit_status(self) -> str:
        try:
            return f", exit status {self._process.wait(KILL_WAIT_S)}"
        except subprocess.TimeoutExpired:
            return ""

    def kill(self) -> None:
        """Ends and reaps the process; idempotent."""
        self._process.kill()
        try:
            self._process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            logger.error("scorer process %d does not end after SIGKILL", self._process.pid)
        self._connection.close()


@lru_cache(maxsize=8)
def _pool_of_process(pid: int, num_workers: int) -> ScorerPool:
    pool = ScorerPool(num_workers=num_workers)
    atexit.register(pool.close)
    return pool


_pool_lock = threading.Lock()


def scorer_pool(num_workers: int) -> ScorerPool:
    """This process's pool of that size; a forked child gets its own, since it cannot share its parent's pipes."""
    with _pool_lock:
        return _pool_of_process(os.getpid(), num_workers)
