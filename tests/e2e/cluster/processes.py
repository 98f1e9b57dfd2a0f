"""The cluster's processes: started with a log each, waited for until they answer, stopped in the opposite order."""

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.e2e.cluster.kube import KubeError

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.1


class PartError(RuntimeError):
    """A part of the cluster that ended or never answered; the text names it and quotes the end of its log."""


class Processes:
    """Named child processes with their logs in one folder."""

    def __init__(self, logs: Path, *, environment: Mapping[str, str]) -> None:
        """`environment` is all that the processes see: nothing of the caller's proxies or credentials."""
        self.logs = logs
        self._environment = dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._orders: dict[str, tuple[Sequence[str | Path], dict[str, str]]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str | Path], **environment: str) -> None:
        """Start a part; it dies with this process even if that is killed."""
        self._orders[name] = (command, environment)
        with open(self.log(name), "ab") as log:
            self._running[name] = subprocess.Popen(
                [str(word) for word in command],
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is ours to handle: the parts end in order
                preexec_fn=_die_with_parent,
            )

    def wait_for(self, name: str, is_ready: Callable[[], bool], *, timeout_s: float = 300) -> None:
        """Wait until a started part is ready.

        Raises:
            PartError: the part ended, or is not ready in time.
        """
        begin, refused = time.monotonic(), ""
        while True:
            try:
                if is_ready():
                    return
            except KubeError as error:  # an API server that does not answer yet
                refused = f"{error}; "
            self.check(name)
            if time.monotonic() - begin > timeout_s:
                raise PartError(
                    f"{name} is not ready after {timeout_s:.0f} s: {refused}its log ends:\n{self.tail(name)}"
                )
            time.sleep(_POLL_S)

    def check(self, *names: str) -> None:
        """Raises:
        PartError: one of these parts (of all, without names) is no longer there.
        """
        for name in names or tuple(self._running):
            code = self._running[name].poll()
            if code is not None:
                raise PartError(f"{name} ended with {code}; its log ends:\n{self.tail(name)}")

    def start_again(self) -> list[str]:
        """Start every part that has ended, as a node's init system does; returns their names."""
        ended = [name for name, process in self._running.items() if process.poll() is not None]
        for name in ended:
            command, environment = self._orders[name]
            self.start(name, command, **environment)
        return ended

    def write_pids(self, path: Path) -> None:
        """Part -> process id, as this PID namespace counts them, whole or not at all."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({name: process.pid for name, process in self._running.items()}))
        partial.rename(path)

    def stop_all(self) -> None:
        """Stop everything, the last started first (the API server before etcd): SIGTERM, then SIGKILL after 20 s."""
        for process in reversed(self._running.values()):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> Path:
        """Return the file of a part's output."""
        return self.logs / f"{name}.log"

    def tail(self, name: str) -> str:
        """Return the last 15 lines of a part's log."""
        text = self.log(name).read_text(errors="replace") if self.log(name).is_file() else ""
        return "\n".join(text.splitlines()[-15:])


def minimal_environment(home: Path, *, path: str | None = None) -> dict[str, str]:
    """PATH and a HOME of the cluster's own."""
    return {"PATH": path or os.environ.get("PATH", os.defpath), "HOME": str(home)}


_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
