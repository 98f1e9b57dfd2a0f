"""A child interpreter under its parent's control: started fresh, spoken to over one pipe, killed and reaped at will."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

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
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
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
        """Ends and reaps the process; idempotent."""
        self._process.kill()
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
