"""One scorer process as its parent sees it: start, one call at a time under a deadline, kill and reap."""

import logging
import os
import pickle
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from opd.rewards.protocol import ConfigurationFault, Failure, ScoreTask, Started
from opd.rewards.scorers import Score

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""A fresh process that imports a scorer's libraries on a busy machine; math-verify takes 0.5 s on an idle one."""
REAP_TIMEOUT_S = 10.0


class ScorerProcessLost(Exception):
    """The process missed its deadline or died; it must be discarded."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ScorerProcess:
    """A child running `opd.rewards.worker`. One thread may use it at a time; `kill` may come from any."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        # A fresh interpreter, not multiprocessing: that would run the parent's main module (Ray's worker) again.
        # -P keeps the current directory off the path; PYTHONPATH: what this process can import, the child can.
        command = [sys.executable, "-P", "-m", "opd.rewards.worker", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,  # scorers print; the driver's standard output is not theirs
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # a Ctrl-C is the parent's to handle
            )
        self._connection: Connection = ours
        self.pid = self._process.pid

    def alive(self) -> bool:
        """Whether the process still runs; reaps it where it does not."""
        return self._process.poll() is None

    def run(self, task: ScoreTask, *, timeout_s: float) -> Score | Failure:
        """Scores one answer.

        Raises:
            ScorerProcessLost: no result by the deadline (counted from the scorer's start), or the process died.
            ImportError | TypeError: the scorer cannot be imported, or called with these arguments.
        """
        message = self._payload(task, timeout_s)
        try:
            self._connection.send_bytes(message)
            reply = self._receive(START_TIMEOUT_S, "imported its scorer")
            if isinstance(reply, Started):
                reply = self._receive(timeout_s, "scored")
        except (EOFError, OSError) as error:
            raise ScorerProcessLost(f"the scorer's process died{self._exit_status()}") from error
        if isinstance(reply, ConfigurationFault):
            raise reply.error_type(reply.message)
        return reply

    def kill(self) -> None:
        """Ends and reaps the process; idempotent."""
        self._process.kill()
        try:
            self._process.wait(REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.error("scorer process %d does not end %g s after SIGKILL", self.pid, REAP_TIMEOUT_S)

    def disconnect(self) -> None:
        """Closes the connection; for the thread that uses the process."""
        self._connection.close()

    @staticmethod
    def _payload(task: ScoreTask, timeout_s: float) -> bytes:
        try:
            return pickle.dumps((task, timeout_s))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"reward function {task.function!r} runs in its own process, and the row's extra_info or ground truth "
                f"cannot be pickled: {error}"
            ) from error

    def _receive(self, timeout_s: float, what: str) -> Any:
        if not self._connection.poll(timeout_s):
            raise ScorerProcessLost(f"had not {what} after {timeout_s:g} s and was killed")
        return self._connection.recv()

    def _exit_status(self) -> str:
        try:
            return f" with exit status {self._process.wait(REAP_TIMEOUT_S)}"
        except subprocess.TimeoutExpired:
            return ""
