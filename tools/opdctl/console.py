"""Output of the whole tool: tables on stdout, progress and errors on stderr, options that commands share."""

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
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from opd.redaction import redact
from opdctl.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, ToolError, usage_error

if TYPE_CHECKING:
    from rich.console import Console

Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this many seconds.")
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store", envvar="OPDCTL_STORE", metavar="URL", help="Folder or fsspec URL of the runs; else ./outputs/store."
    ),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The run.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Read everything again and keep nothing.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the run; the kubeconfig context's by default.")
]
Context = Annotated[str | None, typer.Option("--context", help="Kubeconfig context; the current one by default.")]
NoCluster = Annotated[bool, typer.Option("--no-cluster", help="Read the store only.")]
DEFAULT_TIMEOUT_S = 300.0
_ASCII = {"–": "-", "—": "-", "…": "...", "·": "*", "×": "x", "→": "->", "±": "+-", "“": '"', "”": '"', "’": "'"}
_AGAIN_S = 5.0


def stdout() -> Console:
    """Return the console for results; names of runs are text, never markup."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False, markup=False, emoji=False)


def stderr() -> Console:
    """Return the console for progress, notes and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def note(message: str) -> None:
    """Print one remark for the user."""
    print(redact(message), file=sys.stderr)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal's stderr; yield the function to call after each item."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = stderr()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def working(title: str) -> Iterator[None]:
    """Show a spinner on a terminal's stderr; notes appear above it."""
    console = stderr()
    if not console.is_terminal:
        yield
        return
    from rich.text import Text

    with console.status(Text(title)):
        yield


def print_json(tree: Any, *, file: IO[str] | None = None) -> None:
    """Print plain values for programs: without secrets, NaN and infinities as texts."""
    import json

    from opd.redaction import redact_tree

    print(json.dumps(finite(redact_tree(tree)), indent=1, ensure_ascii=False, allow_nan=False), file=file, flush=True)


def finite(value: Any) -> Any:
    """Return the value with NaN and infinities as the strings of the trainer's metrics."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@contextmanager
def binary_file(path: Path | None) -> Iterator[IO[bytes]]:
    """Open stdout (None and `-`), or a file that appears when it is complete."""
    if path is None or str(path) == "-":
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class CommandTimeout(BaseException):
    """The end of the command's own --timeout; like Ctrl-C it is no `Exception` that a library may swallow."""


@contextmanager
def deadline(timeout_s: float) -> Iterator[None]:
    """Raise CommandTimeout in the main thread after `timeout_s`; a limit of the caller waits for the end of the block."""

    def expire(signum: int, frame: FrameType | None) -> None:
        raise CommandTimeout(f"not done after {timeout_s:g} s")

    if not math.isfinite(timeout_s):
        raise usage_error(f"--timeout {timeout_s:g}: it takes a number of seconds", fix="give one, such as 300")
    previous = signal.signal(signal.SIGALRM, expire)
    begun_s = time.monotonic()
    # The timer repeats: an exception that is raised within a finaliser is printed and lost.
    others_s, _ = signal.setitimer(signal.ITIMER_REAL, timeout_s, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if others_s:
            signal.setitimer(signal.ITIMER_REAL, max(others_s - (time.monotonic() - begun_s), 1e-3))


def run_guarded(call: Callable[[], int]) -> int:
    """Run a command line; print an error that the user can mend as one block and return its exit code."""
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
        # `opdctl logs | head`: the reader has ended; the flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ToolError as error:
        fail(str(error), fix=error.fix)
        return error.exit_code
    except _house_errors() as error:
        fail(str(error), fix=_fix_of(error))
        return getattr(error, "exit_code", EXIT_USAGE) or EXIT_FAILURE
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename is not None and error.strerror else str(error))
    return EXIT_FAILURE


def speak_plainly() -> None:
    """Let stdout and stderr take any text: characters that their encoding lacks are spelled in ASCII."""
    codecs.register_error("opdctl.ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="opdctl.ascii")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _house_errors() -> tuple[type[Exception], ...]:
    """Return the errors of spec (exit 2) and run directory; they are imported after an error only."""
    from opd.config import SpecError
    from opd.errors import RunError

    return RunError, SpecError


def _fix_of(error: Exception) -> str:
    from opd.errors import StoreUnavailable

    if not isinstance(error, StoreUnavailable):
        return ""
    return "check its address (AWS_ENDPOINT_URL_S3, store.endpoint) and the network, or wait longer with --timeout"


def fail(message: str, *, fix: str = "") -> None:
    """Print an error and its fix."""
    print(redact(f"error: {message}"), file=sys.stderr)
    if fix:
        print(redact(f"  fix: {fix}"), file=sys.stderr)


def leave_at_once(code: int) -> None:
    """End without joining threads that still wait for a store."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
