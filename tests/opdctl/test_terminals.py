"""The tool on terminals of every kind: without colour, without Unicode, without anything but lines, and narrow."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import PYTHON_PATH

PLAIN = {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}


@pytest.fixture
def on_a_terminal(tmp_path: Path) -> Callable[..., str]:
    """What `opdctl ARGUMENTS` writes to a terminal of 80 columns that has nothing set but what is given."""

    def run(*arguments: object, **environment: str) -> str:
        near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        kept = {
            name: os.environ[name] for name in ("PATH", "KUBECONFIG", "OPDCTL_CACHE_DIR", "HOME") if name in os.environ
        }
        words = [sys.executable, "-m", "opdctl.cli", *map(str, arguments)]
        process = subprocess.Popen(
            words,
            env={**kept, "PYTHONPATH": PYTHON_PATH, **environment},
            cwd=tmp_path,
            stdout=far,
            stderr=far,
            stdin=far,
        )
        os.close(far)
        seen = b""
        while True:
            try:
                piece = os.read(near, 2**14)
            except OSError:  # Linux's word for the end, once nobody holds the other side
                break
            if not piece:
                break
            seen += piece
        os.close(near)
        assert process.wait(120) == 0, seen
        return seen.decode()

    return run


@pytest.mark.slow
def test_colour_is_written_to_a_terminal_and_never_where_it_is_not_wanted(
    on_a_terminal: Callable, make_run: Callable, store: Path
) -> None:
    make_run("r", result={"steps": 1})
    words = ("list", "--store", store)
    coloured = on_a_terminal(*words, **PLAIN)
    assert "\x1b[32m" in coloured
    assert "┃" in coloured
    assert "\x1b[3" not in on_a_terminal(*words, **PLAIN, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(*words, **{**PLAIN, "TERM": "dumb"})
