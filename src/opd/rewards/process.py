"""One scorer process as its parent sees it: one call at a time, under a deadline."""

import pickle
from typing import Any

from opd.isolation.child_process import ChildProcess
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
