"""Stacks of every thread of a run's processes on this machine, printed by the processes themselves.

Each Python process of a run registers a handler of `faulthandler`. It is C code, so it answers from a thread that waits
for a lock, for a collective, or for the interpreter.
"""

import contextlib
import faulthandler
import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import IO

SIGNAL = signal.SIGUSR1
FOLDER_VARIABLE = "OPD_STACKS_DIR"
FILE = "stacks.txt"  # name in the attempt's folder
_ANSWER_TIMEOUT_S = 5.0
_open_file: IO[str] | None = None


def folder() -> Path:
    """Return the folder of this user's stacks."""
    return Path(os.environ.get(FOLDER_VARIABLE) or f"{tempfile.gettempdir()}/opd-stacks-{os.getuid()}")


def register() -> None:
    """Make this process write its stacks at the signal (`worker_process_setup_hook` of Ray's workers)."""
    global _open_file
    with contextlib.suppress(OSError):
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        _open_file = (folder() / f"{os.getpid()}.txt").open("w")
        faulthandler.register(SIGNAL, file=_open_file, all_threads=True, chain=False)


def registered() -> list[int]:
    """Return living processes of this machine with a handler, also children of another process (a joined Ray's raylet)."""
    pids = [int(path.stem) for path in folder().glob("*.txt") if path.stem.isdigit()]
    return [pid for pid in pids if _handles(_proc(pid, "status"))]


def dump(pids: list[int]) -> str:
    """Return the stacks of these processes as text, each with its command line and state."""
    states = {pid: _proc(pid, "status") for pid in pids}
    asked = [pid for pid, state in states.items() if _handles(state)]
    for pid in asked:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)  # a stopped process handles no signal
            os.kill(pid, SIGNAL)
    deadline_s = time.monotonic() + _ANSWER_TIMEOUT_S
    while time.monotonic() < deadline_s and not all(map(_stack, asked)):
        time.sleep(0.05)
    time.sleep(0.2)  # for the last threads of a process that has begun to write
    return "\n".join(
        f"===== process {pid}, state {_line(state, 'State') or 'unknown'}: "
        f"{_proc(pid, 'cmdline').replace(chr(0), ' ').strip()[:200] or 'gone'}\n"
        f"{_stack(pid) or '(no stack: the process has no handler, or did not answer)'}\n"
        for pid, state in states.items()
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").rstrip()
    except OSError:
        return ""


def _proc(pid: int, name: str) -> str:
    return _read(Path(f"/proc/{pid}/{name}"))


def _stack(pid: int) -> str:
    return _read(folder() / f"{pid}.txt")


def _line(status: str, name: str) -> str:
    found = re.search(rf"^{name}:(.*)", status, re.MULTILINE)
    return found[1].strip() if found else ""


def _handles(status: str) -> bool:
    """Return True if the process has a handler: the signal ends a process without one."""
    return bool(int(_line(status, "SigCgt") or "0", 16) >> (SIGNAL - 1) & 1)
