"""The killable scorer pool, parent's side: lazily started worker processes and a deadline for each call."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from functools import lru_cache
from typing import Any

from opd.isolation.pool import ChildProcess, ProcessPool
from opd.rewards.protocol import ConfigurationFault, Failure, ScoreTask, Started
from opd.rewards.scorers import Score

START_TIMEOUT_S = 120.0
"""A fresh process that imports a scorer's libraries on a busy machine; math-verify takes 0.5 s on an idle one."""
Outcome = Score | Failure | ConfigurationFault


def payload(task: ScoreTask, timeout_s: float | None) -> bytes:
    """A call as it travels; without a deadline the worker only says whether it could score.

    Raises:
        TypeError: the row's values cannot be pickled.
    """
    try:
        return pickle.dumps((task, timeout_s))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"reward function {task.function!r} runs in its own process, and the row's extra_info or ground truth "
            f"cannot be pickled: {error}"
        ) from error


class ScorerProcess(ChildProcess):
    """A child running `opd.rewards.worker`. One thread may use it at a time; `kill` may come from any."""

    def __init__(self) -> None:
        super().__init__("opd.rewards.worker")

    def check(self, task: ScoreTask) -> None:
        """Imports the scorer and matches its arguments, without scoring.

        Raises:
            ImportError | TypeError: it cannot be imported, or called with these arguments.
        """
        message = payload(task, None)
        try:
            self.connection.send_bytes(message)
            reply = self._receive(START_TIMEOUT_S, "imported its scorer")
        except (EOFError, OSError) as error:
            reason = str(error) if isinstance(error, TimeoutError) else f"its process died{self.exit_status()}"
            raise ImportError(f"the reward function cannot be imported: {reason}") from error
        if isinstance(reply, ConfigurationFault):
            raise reply.error_type(reply.message)

    def run(self, message: bytes, timeout_s: float) -> Outcome:
        """Scores one answer (`payload`) by the deadline, counted from the scorer's start; else the process is killed."""
        declared: float | None = None
        try:
            self.connection.send_bytes(message)
            reply = self._receive(START_TIMEOUT_S, "imported its scorer")
            if isinstance(reply, Started):
                declared = reply.worst_score
                reply = self._receive(timeout_s, "scored")
        except (EOFError, OSError) as error:
            late = isinstance(error, TimeoutError)
            failure = Failure(str(error) if late else f"the scorer's process died{self.exit_status()}", declared)
            self.kill()
            return failure
        return reply._replace(worst_score=declared) if isinstance(reply, Failure) else reply

    def _receive(self, timeout_s: float, what: str) -> Any:
        try:
            return self.receive(timeout_s)
        except TimeoutError:
            raise TimeoutError(f"had not {what} after {timeout_s:g} s and was killed") from None


class ScorerPool(ProcessPool[ScorerProcess, tuple[bytes, float], Outcome]):
    """At most `num_workers` processes that score; each is replaced after a hang or a death."""

    def __init__(self, *, num_workers: int) -> None:
        super().__init__(num_processes=num_workers, name="score")

    async def score(self, task: ScoreTask, *, timeout_s: float) -> Score | Failure:
        """Score one answer; the process is killed at the deadline and replaced at the next call.

        Raises:
            ImportError | TypeError: the scorer cannot be imported, or called with these arguments.
            RuntimeError: the pool is closed.
        """
        outcome = await asyncio.wrap_future(self._submit((payload(task, timeout_s), timeout_s)))
        if isinstance(outcome, ConfigurationFault):
            raise outcome.error_type(outcome.message)
        return outcome

    def _spawn(self) -> ScorerProcess:
        return ScorerProcess()

    def _ask(self, child: ScorerProcess, request: tuple[bytes, float]) -> Outcome:
        return child.run(*request)

    def _closed_error(self) -> Exception:
        return RuntimeError("the scorer pool is closed")


@lru_cache(maxsize=8)
def _pool_of(pid: int, num_workers: int) -> ScorerPool:
    return ScorerPool(num_workers=num_workers)


_pools_lock = threading.Lock()


def scorer_pool(num_workers: int) -> ScorerPool:
    """This process's pool of that size; a forked child gets its own, since it cannot share its parent's connections."""
    with _pools_lock:
        return _pool_of(os.getpid(), num_workers)
