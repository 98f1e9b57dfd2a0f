"""Stacks of every thread of a run's processes on this machine, printed by the processes themselves.

Each Python process of a run registers a handler of `faulthandler`. It is C code, so it answers from a thread that waits
for a lock, for a collective, or for the interpreter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import IO

SIGNAL = signal.SIGUSR1
FOLDER_VARIABLE = "OPD_STACKS_DIR"
FILE = "stacks.txt"
"""Name in the attempt's folder."""
_ANSWER_TIMEOUT_S = 5.0
_open_file: IO[str] | None = None


def folder() -> Path:
    """Return the folder of this user's stacks."""
    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given) if given else Path(tempfile.gettempdir()) / f"opd-stacks-{os.getuid()}"


def register() -> None:
    """Make this process write its stacks at the signal (`worker_process_setup_hook` of Ray's workers)."""
    global _open_file
    place = folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _open_file = (place / f"{os.getpid()}.txt").open("w")
    except OSError:
        return
    faulthandler.register(SIGNAL, file=_open_file, all_threads=True, chain=False)


def registered() -> list[int]:
    """Return living processes of this machine with a handler, also children of another process (a joined Ray's raylet)."""
    pids = [int(path.stem) for path in folder().glob("*.txt") if path.stem.isdigit()]
    return [pid for pid in pids if _handles(pid)]


def dump(pids: list[int]) -> str:
    """Return the stacks of these processes as text, each with its command line and state."""
    states = {pid: _status(pid).get("State", "unknown") for pid in pids}
    for pid, state in states.items():
        if state.startswith("T"):  # a stopped process handles no signal
            _signal(pid, signal.SIGCONT)
    files = {pid: folder() / f"{pid}.txt" for pid in pids if _handles(pid)}
    before = {pid: _size(path) for pid, path in files.items()}
    for pid in files:
        _signal(pid, SIGNAL)
    deadline_s = time.monotonic() + _ANSWER_TIMEOUT_S
    while time.monotonic() < deadline_s and any(_size(path) == before[pid] for pid, path in files.items()):
        time.sleep(0.05)
    time.sleep(0.2)  # for the last threads of a process that has begun to write
    parts = []
    for pid, state in states.items():
        text = "(no stack: the process has no handler, or did not answer)"
        if pid in files and _size(files[pid]) > before[pid]:
            text = files[pid].read_bytes()[before[pid] :].decode(errors="replace")
        parts.append(f"===== process {pid}, state {state}: {_command(pid)}\n{text.rstrip()}\n")
    return "\n".join(parts)


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _handles(pid: int) -> bool:
    """Return True if the process has a handler: the signal ends a process without one."""
    return bool(int(_status(pid).get("SigCgt", "0"), 16) >> (SIGNAL - 1) & 1)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return "gone"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
