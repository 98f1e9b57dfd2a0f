"""The child's side of a pool: its requests, what ends it where its parent cannot, and the kernel's limits on it."""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType


def load_file(path: Path, name: str) -> ModuleType:
    """Import a Python file as the module `name`.

    Raises:
        ImportError: there is no such file; or whatever the file raises.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    spec.loader.exec_module(module)
    return module


PARENT_POLL_S = 5.0
ORPHAN_GRACE_S = 2.0
"""How long after the deadline the kernel's alarm ends this process if its parent is no longer there to kill it."""


def requests(connection: Connection) -> Iterator[bytes]:
    """What the parent sends, until it closes the connection or is gone."""
    parent = os.getppid()
    while True:
        while not connection.poll(PARENT_POLL_S):
            if os.getppid() != parent:  # a fork of the parent may hold the other end open
                return
        try:
            yield connection.recv_bytes()
        except EOFError:
            return


@contextmanager
def orphan_alarm(timeout_s: float) -> Iterator[None]:
    """While inside, the kernel ends this process `ORPHAN_GRACE_S` after a deadline that its parent keeps by itself."""
    # The default action of SIGALRM ends the process even inside C code that never returns to Python.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout_s + ORPHAN_GRACE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def limit(kind: int, value: int) -> None:
    """Lower a soft limit of the kernel (`resource.RLIMIT_...`), within the hard one."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
