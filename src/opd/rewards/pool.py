"""The killable scorer pool, parent's side: lazily started worker processes, a deadline for each call, no survivors."""

import asyncio
import atexit
import os
import queue
import threading
from concurrent.futures import Future
from functools import lru_cache
from typing import NamedTuple

from opd.rewards.process import ScorerProcess, ScorerProcessLost
from opd.rewards.protocol import Failure, ScoreTask
from opd.rewards.scorers import Score


class _Request(NamedTuple):
    """A call from an event loop, waiting for one of the pool's threads."""

    future: "Future[Score | Failure]"
    task: ScoreTask
    timeout_s: float


class ScorerPool:
    """At most `num_workers` processes that score; each is replaced after a hang or a death. Safe in any thread."""

    def __init__(self, *, num_workers: int) -> None:
        self._num_workers = num_workers
        # Last in, first out: a second process starts only while the first is busy. None = not started yet.
        self._idle: queue.LifoQueue[ScorerProcess | None] = queue.LifoQueue()
        for _ in range(num_workers):
            self._idle.put(None)
        self._lock = threading.Lock()
        self._processes: set[ScorerProcess] = set()
        self._closed = False
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._num_threads = 0

    def score(self, task: ScoreTask, *, timeout_s: float) -> Score | Failure:
        """Scores one answer; the process is killed at the deadline and replaced at the next call.

        Raises:
            ImportError | TypeError: the scorer cannot be imported, or called with these arguments.
            RuntimeError: the pool is closed.
        """
        process = self._idle.get()
        healthy = False
        try:
            if process is None or not process.alive():
                self._discard(process)  # one that died while idle: through no fault of this answer
                process = self._start()
            result = process.run(task, timeout_s=timeout_s)
            healthy = True
            return result
        except (ImportError, TypeError):
            healthy = process is not None and process.alive()
            raise
        except ScorerProcessLost as lost:
            return lost.failure
        finally:
            if not healthy:
                self._discard(process)
            self._idle.put(process if healthy else None)

    async def score_async(self, task: ScoreTask, *, timeout_s: float) -> Score | Failure:
        """`score` without blocking the event loop or any thread that is not the pool's."""
        self._start_threads()
        request = _Request(Future(), task, timeout_s)
        self._requests.put(request)
        return await asyncio.wrap_future(request.future)

    def close(self) -> None:
        """Kills and reaps every process; a call under way ends in a failure, a later one raises."""
        with self._lock:
            self._closed = True
            processes = list(self._processes)
        for process in processes:
            process.kill()

    def _start(self) -> ScorerProcess:
        with self._lock:
            if self._closed:
                raise RuntimeError("the scorer pool is closed")
            process = ScorerProcess()
            self._processes.add(process)
            return process

    def _discard(self, process: ScorerProcess | None) -> None:
        if process is None:
            return
        process.kill()
        process.disconnect()
        with self._lock:
            self._processes.discard(process)

    def _start_threads(self) -> None:
        """As many threads as can ever be scoring; daemons, so that a hung scorer never holds up the process's exit."""
        with self._lock:
            while self._num_threads < self._num_workers:
                self._num_threads += 1
                threading.Thread(
                    target=self._serve_requests, name=f"opd-score-{self._num_threads}", daemon=True
                ).start()

    def _serve_requests(self) -> None:
        while True:
            request = self._requests.get()
            if not request.future.set_running_or_notify_cancel():
                continue
            try:
                request.future.set_result(self.score(request.task, timeout_s=request.timeout_s))
            except Exception as error:  # noqa: BLE001  handed to the caller, who awaits the future
                request.future.set_exception(error)


@lru_cache(maxsize=8)
def _pool_of(pid: int, num_workers: int) -> ScorerPool:
    pool = ScorerPool(num_workers=num_workers)
    atexit.register(_close_own, pool, pid)
    return pool


def _close_own(pool: ScorerPool, pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits the handler, not the processes
        pool.close()


_pools_lock = threading.Lock()


def scorer_pool(num_workers: int) -> ScorerPool:
    """This process's pool of that size; a forked child gets its own, since it cannot share its parent's connections."""
    with _pools_lock:
        return _pool_of(os.getpid(), num_workers)
