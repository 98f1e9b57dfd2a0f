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


def dump() -> str:
    """Have this machine's registered processes write their stacks; return them as text, each with its command line."""
    pids = [int(path.stem) for path in folder().glob("*.txt") if path.stem.isdigit() and _handles(int(path.stem))]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)  # a stopped process handles no signal
            os.kill(pid, SIGNAL)
    deadline_s = time.monotonic() + _ANSWER_TIMEOUT_S
    while time.monotonic() < deadline_s and not all(_read(folder() / f"{pid}.txt") for pid in pids):
        time.sleep(0.05)
    time.sleep(0.2)  # for the last threads of a process that has begun to write
    words = {pid: _read(Path(f"/proc/{pid}/cmdline")).replace(chr(0), " ").strip() for pid in pids}
    return "\n".join(
        f"===== process {pid}: {words[pid][:200]}\n{_read(folder() / f'{pid}.txt') or '(no answer)'}\n" for pid in pids
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").rstrip()
    except OSError:
        return ""


def _handles(pid: int) -> bool:
    """Return True if the process has a handler: the signal ends a process without one."""
    caught = re.search(r"^SigCgt:\s*(\S+)", _read(Path(f"/proc/{pid}/status")), re.MULTILINE)
    return bool(int(caught[1] if caught else "0", 16) >> (SIGNAL - 1) & 1)
