"""Where every thread of a run's processes is: by py-spy where it is installed and allowed, else by what each process prints itself.

Each Python process of a run registers a handler that writes its threads' stacks to a file of its own. It is C code, so it
answers from a thread that waits for a lock, for a collective, or for the interpreter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

SIGNAL = signal.SIGUSR1
FOLDER_VARIABLE = "OPD_STACKS_DIR"
FILE = "stacks.txt"
"""In the folder of the attempt."""
# py-spy stops a process for as long as it reads it.
_PY_SPY_TIMEOUT_S = 20.0
_ANSWER_TIMEOUT_S = 5.0
# Joining a Ray cluster takes seconds, starting a process on each node too; a Ray that hangs takes for ever.
NODES_TIMEOUT_S = 90.0
_open_file: IO[str] | None = None


def folder() -> Path:
    """Where the processes of this user write their stacks."""
    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given) if given else Path(tempfile.gettempdir()) / f"opd-stacks-{os.getuid()}"


def register() -> None:
    """Have this process write its threads' stacks when it is asked for them (`worker_process_setup_hook` of Ray's workers)."""
    global _open_file
    place = folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _open_file = (place / f"{os.getpid()}.txt").open("w")
    except OSError:
        return  # nowhere to write: py-spy may still do
    faulthandler.register(SIGNAL, file=_open_file, all_threads=True, chain=False)


def registered() -> list[int]:
    """Living processes of this machine that write their stacks to the folder, whoever started them (a joined Ray's raylet)."""
    pids = [int(path.stem) for path in folder().glob("*.txt") if path.stem.isdigit()]
    return [pid for pid in pids if _handles(pid)]


def dump(pids: list[int]) -> str:
    """The stacks of these processes as text, each with its command line and state; says where there are none."""
    place, parts = folder(), []
    states = {pid: _state(pid) for pid in pids}
    for pid, state in states.items():
        if state.startswith("T"):  # a stopped process handles no signal
            _signal(pid, signal.SIGCONT)
    asked = [pid for pid in pids if _handles(pid)]
    files = {pid: place / f"{pid}.txt" for pid in asked}
    before = {pid: _size(path) for pid, path in files.items()}
    for pid in asked:
        _signal(pid, SIGNAL)
    deadline_s = time.monotonic() + _ANSWER_TIMEOUT_S
    while time.monotonic() < deadline_s and any(_size(path) == before[pid] for pid, path in files.items()):
        time.sleep(0.05)
    time.sleep(0.2)  # the last threads of who has begun to write
    for pid, state in states.items():
        own = (
            files[pid].read_bytes()[before[pid] :].decode(errors="replace")
            if pid in files and files[pid].exists()
            else ""
        )
        text = (
            _by_py_spy(pid)
            or own
            or "(no stack: the process has no handler and py-spy is not installed or not allowed)"
        )
        parts.append(f"===== process {pid}, state {state}: {_command(pid)}\n{text.rstrip()}\n")
    return "\n".join(parts)


def dump_of_other_nodes() -> str:
    """The same of the run's processes on the other nodes of the Ray cluster that it has joined; says why where there is none."""
    try:
        asked = subprocess.run(
            [sys.executable, "-m", "opd.cluster.node_stacks"],
            capture_output=True, text=True, timeout=NODES_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"(no stacks of other nodes: {error})\n"
    if asked.stdout and asked.returncode == 0:  # 0 also where the supervisor's wait for any child has taken the status
        return asked.stdout
    return f"{asked.stdout}(no stacks of other nodes: {asked.stderr[-2000:].strip()})\n"


def _by_py_spy(pid: int) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True, text=True, timeout=_PY_SPY_TIMEOUT_S, check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else ""
    return ""


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _state(pid: int) -> str:
    return _status(pid).get("State", "unknown")


def _handles(pid: int) -> bool:
    """Whether the process has a handler for the signal: one without would die of it."""
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
