"""The child's side of a pool: `python -m opd.isolation.serving FD MODULE:SERVER ARGUMENTS...`.

SERVER takes the arguments and returns a `Handle`. Each request gets two messages: `("started", note)` or
`("refused", error type, text)`, then the result.
"""

import contextlib
import ctypes
import importlib
import importlib.util
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

_PR_SET_PDEATHSIG = 1
STARTED, REFUSED = "started", "refused"
Handle = Callable[[Any], tuple[Callable[[], Any], Any]]
"""Takes a request; returns the call, which the deadline bounds, and a note for the parent. It raises what no answer
is to blame for."""


def main(connection_fd: int, server: str, *arguments: str) -> None:
    """Serve the connection until it closes."""
    end_with_parent()
    module, _, name = server.partition(":")
    handle: Handle = getattr(importlib.import_module(module), name)(*arguments)
    with Connection(connection_fd) as connection, contextlib.suppress(EOFError):
        while True:
            payload = connection.recv_bytes()
            try:
                request, timeout_s = pickle.loads(payload)
                call, note = handle(request)
            except Exception as error:  # noqa: BLE001  a user's module may raise anything as it is imported
                kind = TypeError if isinstance(error, TypeError) else ImportError
                connection.send((REFUSED, kind, f"{type(error).__name__}: {error}"))
                continue
            connection.send((STARTED, note))
            if timeout_s is not None:
                connection.send(call())


def end_with_parent() -> None:
    """Let the kernel end this process as soon as the thread that started it has ended, even within C code (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit(kind: int, value: int) -> None:
    """Lower a soft limit of the kernel (`resource.RLIMIT_...`), within the hard one."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def load_named(name: str, prefix: str) -> Any:
    """Load `package.module:attribute` or `path/to/file.py:attribute`; a file becomes the module `PREFIX_STEM`.

    Raises:
        ImportError: there is no such file or module; or any error of the module.
    """
    source, _, attribute = name.rpartition(":")
    if source.endswith(".py"):
        return getattr(load_file(Path(source), f"{prefix}_{Path(source).stem}"), attribute)
    return getattr(importlib.import_module(source), attribute)


def load_file(path: Path, name: str) -> ModuleType:
    """Import a Python file as the module `name`.

    Raises:
        ImportError: there is no such file; or any error of the file.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
