"""The killable scorer pool, parent's side: lazily started worker processes and a deadline for each call."""

import asyncio
import os
import threading
from functools import lru_cache

from opd.isolation.pool import ProcessPool
from opd.rewards.process import Outcome, ScorerProcess, payload
from opd.rewards.protocol import ConfigurationFault, Failure, ScoreTask
from opd.rewards.scorers import Score


class ScorerPool(ProcessPool[ScorerProcess, tuple[bytes, float], Outcome]):
    """At most `num_workers` processes that score; each is replaced after a hang or a death."""

    def __init__(self, *, num_workers: int) -> None:
        super().__init__(num_processes=num_workers, name="score")

    def score(self, task: ScoreTask, *, timeout_s: float) -> Score | Failure:
        """Scores one answer; the process is killed at the deadline and replaced at the next call.

        Raises:
            ImportError | TypeError: the scorer cannot be imported, or called with these arguments.
            RuntimeError: the pool is closed.
        """
        return _result(self._submit((payload(task, timeout_s), timeout_s)).result())

    async def score_async(self, task: ScoreTask, *, timeout_s: float) -> Score | Failure:
        """`score` without blocking the event loop or any thread that is not the pool's."""
        return _result(await asyncio.wrap_future(self._submit((payload(task, timeout_s), timeout_s))))

    def _spawn(self) -> ScorerProcess:
        return ScorerProcess()

    def _ask(self, child: ScorerProcess, request: tuple[bytes, float]) -> Outcome:
        return child.run(*request)

    def _closed_error(self) -> Exception:
        return RuntimeError("the scorer pool is closed")


def _result(outcome: Outcome) -> Score | Failure:
    if isinstance(outcome, ConfigurationFault):
        raise outcome.error_type(outcome.message)
    return outcome


@lru_cache(maxsize=8)
def _pool_of(pid: int, num_workers: int) -> ScorerPool:
    return ScorerPool(num_workers=num_workers)


_pools_lock = threading.Lock()


def scorer_pool(num_workers: int) -> ScorerPool:
    """This process's pool of that size; a forked child gets its own, since it cannot share its parent's connections."""
    with _pools_lock:
        return _pool_of(os.getpid(), num_workers)
