"""Errors, options and output that all commands share: results on stdout, notes, progress and errors on stderr."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import typer

from opd.redaction import redact

EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
OF_RESULTS = ("numpy", "pyarrow")  # the packages of the extra `results`

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run.")]
Runs = Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Runs; else all of the store.")]
StoreUrl = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="Folder or URL of the runs; else $OPDCTL_STORE.")
]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the run.")]
Context = Annotated[str | None, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig.")]
Output = Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="Form of the output.")]


class ToolError(Exception):
    """A failure with the text that helps to mend it; any function of the tool may raise it.

    `exit_code` is 1, or 2 for a bad argument.
    """

    def __init__(self, message: str, *, fix: str = "", exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.fix = fix
        self.exit_code = exit_code


def usage_error(message: str, *, fix: str = "") -> ToolError:
    """Return the error of a bad argument, before anything was started."""
    return ToolError(message, fix=fix, exit_code=EXIT_USAGE)


def note(message: str) -> None:
    """Print one remark for the user."""
    print(redact(message), file=sys.stderr)


def print_json(tree: Any, *, file: IO[str] | None = None) -> None:
    """Print plain values for programs: without secrets, NaN and infinities as texts."""
    import json

    from opd.redaction import redact_tree

    print(json.dumps(_finite(redact_tree(tree)), indent=1, ensure_ascii=False, allow_nan=False), file=file, flush=True)


def _finite(value: Any) -> Any:
    """Return the value with NaN and infinities as the strings of the trainer's metrics."""
    from opd.runs.metrics import as_number

    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return as_number(value) if isinstance(value, float) else value


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
    note(f"wrote the file {path}")


def run_guarded(call: Callable[[], int]) -> int:
    """Run a command line; print an error that the user can mend as one block and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8
    try:
        code = call()
        if code == EXIT_INTERRUPTED:
            leave_at_once(code)
        return code
    except KeyboardInterrupt:
        _fail("interrupted")
        leave_at_once(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # `opdctl logs | head`: the reader has ended; the flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ToolError as error:
        _fail(str(error), fix=error.fix)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in OF_RESULTS:
            raise
        _fail(f"this command reads tables, and {error.name} is not installed", fix="pip install 'opd[results]'")
        return EXIT_USAGE
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename is not None and error.strerror else str(error))
    except Exception as error:
        from opd.errors import RunError, StoreUnavailable
        from opd.experiment import SpecError

        if not isinstance(error, RunError | SpecError):
            raise
        is_away = isinstance(error, StoreUnavailable)
        _fail(str(error), fix="check its address (AWS_ENDPOINT_URL_S3, store.endpoint) and the network" * is_away)
        return getattr(error, "exit_code", EXIT_USAGE) or EXIT_FAILURE
    return EXIT_FAILURE


def _fail(message: str, *, fix: str = "") -> None:
    print(redact(f"error: {message}"), file=sys.stderr)
    if fix:
        print(redact(f"  fix: {fix}"), file=sys.stderr)


def leave_at_once(code: int) -> None:
    """End without joining threads that still wait for a store."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
