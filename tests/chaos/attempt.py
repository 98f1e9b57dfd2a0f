"""One start of the real trainer under attack: its processes, the phase it is in, and the ways it can end."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.processes import marked

ROOT = Path(__file__).resolve().parents[2]
SPEC = Path(__file__).parent / "specs" / "chaos.yaml"
RUN_ID = "chaos"
# Far above any start: a bound on hanging, not on slowness.
TIMEOUT_S = 900.0
_POLL_S = 0.002


class Broken(AssertionError):
    """A promise that was not kept; the message says which."""


def require(condition: object, message: str) -> None:
    """Raises Broken with the message unless the condition holds."""
    if not condition:
        raise Broken(message)


@dataclass(kw_only=True)
class Attempt:
    """A running or ended start; `folder` is its working directory, `number` counts the starts in it."""

    folder: Path
    number: int
    process: subprocess.Popen[bytes]
    tag: str

    @property
    def log(self) -> Path:
        return self.folder / f"attempt-{self.number}.log"

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def phases(self) -> list[str]:
        """The lines of `marks`, so far."""
        path = self.folder / f"attempt-{self.number}.marks"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def phase(self) -> str:
        """Return its present or last phase: `update of step 3`."""
        if not self.phases:
            return "start-up"
        name, step = self.phases[-1].split()
        return f"{name} of step {step}" if step != "0" else name

    def reaches(self, phase: str, nth: int = 1) -> bool:
        """Wait until the phase is entered for the nth time; False if the process has ended before."""
        return self.until(lambda: sum(line.split()[0] == phase for line in self.phases) >= nth)

    def until(self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> bool:
        """Wait for the condition; False if the process has ended without it."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None:
                return condition()
            require(time.monotonic() < deadline_s, f"attempt {self.number} hangs in {self.phase}; see {self.log}")
            time.sleep(_POLL_S)
        return True

    def sleep(self, seconds: float) -> bool:
        """Wait; False if the process has ended meanwhile."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is None

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_tree()
            raise Broken(f"attempt {self.number} did not end within {timeout_s:.0f} s; see {self.log}") from None

    def must_freeze_at(self, phase: str, nth: int = 1) -> None:
        """Wait until the driver has stopped itself at the mark; Broken if it ends before."""
        there = self.reaches(phase, nth) and self.until(lambda: self.stopped_driver() is not None)
        require(there, f"attempt {self.number} ended before {phase} {nth}; see {self.log}")

    def freeze(self) -> list[psutil.Process]:
        """SIGSTOP to every process of the tree, the launcher first, until none is left that still runs."""
        frozen: dict[int, psutil.Process] = {}
        while True:
            new = [process for process in self._tree() if process.pid not in frozen]
            if not new:
                return list(frozen.values())
            for process in new:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGSTOP)
                frozen[process.pid] = process

    def thaw(self) -> None:
        """SIGCONT to every process of the tree, the launcher last."""
        for process in reversed(self._tree()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def kill_tree(self) -> None:
        """The death of a pod: all processes end at once. They are frozen first, so that none sees another one die."""
        for process in self.freeze():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(60)

    def kill_driver(self) -> None:
        """SIGKILL to the process that trains; the launcher above it lives on and has to clean up."""
        driver = self.driver()
        if driver is None:
            self.kill_tree()  # before the launcher has forked there is only one process
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            driver.kill()
        self.wait(120)

    def kill_launcher(self) -> None:
        """Send SIGKILL to the launcher: the kernel signals the process that trains, which saves and ends by itself."""
        self.process.kill()
        self.process.wait(60)

    def driver(self) -> psutil.Process | None:
        """The launcher's forked child, None before it exists or after its end."""
        for child in self._tree(recursive=False)[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):  # another child may end while we look
                if child.cmdline()[1:3] == ["-m", "opd.launch"]:
                    return child
        return None

    def stopped_driver(self) -> psutil.Process | None:
        """The driver if it has stopped itself, None while it runs or if it has ended."""
        driver = self.driver()
        with contextlib.suppress(psutil.NoSuchProcess):
            if driver is not None and driver.status() == psutil.STATUS_STOPPED:
                return driver
        return None

    def end(self) -> None:
        """Leave nothing running, after any end."""
        if self.process.poll() is None:
            self.kill_tree()
        for process in self.leftovers():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def leftovers(self) -> list[psutil.Process]:
        """Return living processes that inherited this attempt's environment, wherever they hang by now."""
        return marked(self.tag)

    def must_leave_nothing(self) -> None:
        """Raises Broken if a process stays: the launcher's grace period is the longest that one may take to end."""
        deadline_s = time.monotonic() + 300
        while left := self.leftovers():
            require(
                time.monotonic() < deadline_s,
                f"attempt {self.number} left {len(left)} processes behind, such as {_describe(left[0])}",
            )
            time.sleep(0.1)

    def _tree(self, recursive: bool = True) -> list[psutil.Process]:
        """The launcher and what it has started, with what these have if `recursive`; empty once it is reaped."""
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=recursive)]
        except psutil.NoSuchProcess:
            return []


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return f"{process.pid} {' '.join(process.cmdline())[:80]}"
    return str(process.pid)
