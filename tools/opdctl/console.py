"""Prints for the whole tool: tables on stdout, progress and errors on stderr; defines the exit codes."""

from __future__ import annotations

import codecs
import io
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opdctl.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, ToolError, usage_error
from opdctl.redact import redact

if TYPE_CHECKING:
    from rich.console import Console

Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this many seconds.")
]
StoreUrl = Annotated[
    str | None,
    typer.Option("--store", envvar="OPDCTL_STORE", metavar="URL", help="Folder or fsspec URL that holds the runs."),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The run.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Read everything again and keep nothing.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the run; the kubeconfig context's by default.")
]
Context = Annotated[str | None, typer.Option("--context", help="Kubeconfig context; the current one by default.")]
NoCluster = Annotated[bool, typer.Option("--no-cluster", help="Ask no cluster, only the store.")]
DEFAULT_TIMEOUT_S = 300.0
_ASCII = {"–": "-", "—": "-", "…": "...", "·": "*", "×": "x", "→": "->", "±": "+-", "“": '"', "”": '"', "’": "'"}
# What Python itself makes of LC_CTYPE in the C locale: nobody has said it.
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
PLAIN: dict[str, Any] = {"markup": False, "emoji": False}
"""For every console: what a run is called, or says of itself, is text and never Rich's markup."""


def stdout() -> Console:
    """For results. A pipe gets wide, uncut lines."""
    from rich.console import Console

    is_pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=200 if is_pipe else None, highlight=False, soft_wrap=False, **PLAIN)


def stderr() -> Console:
    """For progress, notes and errors, so that stdout stays what was asked for."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, **PLAIN)


def note(message: str) -> None:
    """One remark for the person in front of the screen."""
    print(redact(message), file=sys.stderr)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal's stderr; call what is yielded once a finished item."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = stderr()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def working(title: str) -> Iterator[None]:
    """A spinner on a terminal's stderr while something takes its time; notes go above it."""
    console = stderr()
    if not console.is_terminal:
        yield
        return
    from rich.text import Text

    with console.status(Text(title)):
        yield


class CommandTimeout(BaseException):
    """The command's own --timeout ran out. No `Exception`, as Ctrl-C is none: what a library passes over must not take it."""


_AGAIN_S = 5.0


@contextmanager
def deadline(timeout_s: float) -> Iterator[None]:
    """Raises CommandTimeout in the main thread after `timeout_s`; a limit of the caller's own waits for the end of the block."""

    def expire(signum: int, frame: FrameType | None) -> None:
        raise CommandTimeout(f"not done after {timeout_s:g} s")

    if not math.isfinite(timeout_s):
        raise usage_error(f"--timeout {timeout_s:g}: it takes a number of seconds", fix="give one, such as 300")
    previous = signal.signal(signal.SIGALRM, expire)
    begun_s = time.monotonic()
    # Again and again: what is raised within a finaliser is printed and goes no further.
    others_s, _ = signal.setitimer(signal.ITIMER_REAL, timeout_s, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if others_s:  # whoever calls this as a function may have a limit of its own
            signal.setitimer(signal.ITIMER_REAL, max(others_s - (time.monotonic() - begun_s), 1e-3))


def run_guarded(call: Callable[[], int]) -> int:
    """Runs a command line; every error that is somebody's to mend becomes one block on stderr and an exit code."""
    try:
        code = call()
        if code == EXIT_INTERRUPTED:
            leave_at_once(code)
        return code
    except CommandTimeout as error:
        fail(str(error), fix="give it longer with --timeout SECONDS")
        leave_at_once(EXIT_FAILURE)
    except KeyboardInterrupt:
        fail("interrupted")
        leave_at_once(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # `opdctl logs | head`: the reader has seen enough; a flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except ToolError as error:
        fail(str(error), fix=error.fix)
        return error.exit_code
    except _house_errors() as error:
        fail(str(error), fix=_fix_of(error))
        return getattr(error, "exit_code", EXIT_USAGE) or EXIT_FAILURE
    except OSError as error:
        # A file or folder of the person's own; whatever else talks to something has its own error.
        fail(f"{error.filename}: {error.strerror}" if error.filename is not None and error.strerror else str(error))
        return EXIT_FAILURE
    return EXIT_FAILURE


def speak_plainly() -> None:
    """Lets stdout and stderr take any text: what their encoding lacks is spelled in ASCII instead of ending the command.

    Python writes UTF-8 in the C locale too; to a terminal of which somebody has said so, it is ASCII (and tables by it).
    """
    codecs.register_error("opdctl.ascii", _in_ascii)
    names = ("PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LC_CTYPE", "LANG")
    values = [os.environ.get(name, "") for name in names if name != "LC_CTYPE" or os.environ.get(name) not in _COERCED]
    said = next(filter(None, values), "")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = "ascii" if said in ("C", "POSIX") and stream.isatty() else None
            stream.reconfigure(encoding=encoding, errors="opdctl.ascii")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _house_errors() -> tuple[type[Exception], ...]:
    """The errors of spec (exit 2) and run directory (their own code), imported once there is an error to be told."""
    from opd.config.errors import SpecError
    from opd.errors import RunError

    return RunError, SpecError


def _fix_of(error: Exception) -> str:
    """What helps with a store that does not answer; the others say it themselves."""
    from opd.errors import StoreUnavailable

    if not isinstance(error, StoreUnavailable):
        return ""
    return (
        "check its address (AWS_ENDPOINT_URL_S3, store.endpoint) and the network, or wait longer with --timeout SECONDS"
    )


def fail(message: str, *, fix: str = "") -> None:
    """One block: what is wrong and how to mend it."""
    print(redact(f"error: {message}"), file=sys.stderr)
    if fix:
        print(redact(f"  fix: {fix}"), file=sys.stderr)


def leave_at_once(code: int) -> None:
    """Ends without joining threads that still wait for a store."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
