"""Runs a command, shows the lines a person wants, keeps all of them in a file, and samples the memory of its processes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

# The lines our own logger writes; verl's and Ray's stay in the log file.
SHOWN = re.compile(r"^(?:[█░]+ step |validation at step |starting |resuming |asked to end|saved step |opd\.)")
_FIRST_STEP = re.compile(r"^[█░]+ step +\d+/")
_SAMPLE_S = 0.5


@dataclass(kw_only=True)
class Watched:
    """How a command went: exit code, seconds to its first step's line and in all, peak memory of its process tree."""

    returncode: int
    startup_s: float | None
    wall_s: float
    peak_pss_gib: float


def tree_pss_bytes(root: psutil.Process) -> int:
    """Sum of the proportional set sizes of a process and its descendants (shared pages are counted once in all)."""
    total = 0
    for process in [root, *_descendants(root)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue  # it ended while we looked
    return total


def _descendants(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.Error:
        return []


def watch(command: list[str], log: Path, env: dict[str, str]) -> Watched:
    """Run `command` to its end; its output goes to `log`, the readable lines also to stdout."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    peak = [0]
    done = threading.Event()

    def sample() -> None:
        root = psutil.Process(process.pid)
        while not done.is_set():
            peak[0] = max(peak[0], tree_pss_bytes(root))
            done.wait(_SAMPLE_S)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    startup = None
    assert process.stdout is not None
    with log.open("w") as file:
        for line in process.stdout:
            file.write(line)
            if startup is None and _FIRST_STEP.match(line):
                startup = time.monotonic() - started
            if SHOWN.match(line):
                sys.stdout.write(line)
                sys.stdout.flush()
    returncode = process.wait()
    done.set()
    sampler.join()
    return Watched(
        returncode=returncode, startup_s=startup, wall_s=time.monotonic() - started, peak_pss_gib=peak[0] / 2**30
    )
