"""Puts the commands together, and turns the end of any of them into an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from opdctl.commands import (
    cancel,
    collect,
    compare,
    delete,
    doctor,
    explain,
    init,
    list_runs,
    logs,
    pull,
    render,
    report,
    run,
    status,
    submit,
    wait,
)
from opdctl.console import run_guarded, speak_plainly
from opdctl.errors import EXIT_OK, EXIT_USAGE, ToolError, usage_error

EPILOG = (
    "A RUN is its name (in a cluster's namespace, or below --store, $OPDCTL_STORE), the path or URL of its directory, or its "
    "experiment file. "
    "Exit codes: 0 done, 1 failure, 2 bad spec or usage, 130 interrupted."
)

# Of click in older versions of typer, of typer itself in newer ones; only its kinds have public names.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="opdctl",
    epilog=EPILOG,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"opdctl {version('opd')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """From an experiment file to a run, and back to its results."""


app.command("init")(init.init)
app.command("explain")(explain.explain)
app.command("render")(render.render)
app.command("submit")(submit.submit)
app.command("run")(run.run)
app.command("doctor")(doctor.doctor)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("wait")(wait.wait)
app.command("cancel")(cancel.cancel)
app.command("delete")(delete.delete)
app.command("list")(list_runs.list_runs)
app.command("collect")(collect.collect)
app.command("pull")(pull.pull)
app.command("compare")(compare.compare)
app.command("report")(report.report)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: runs one command and exits with its code."""
    speak_plainly()
    sys.exit(run_guarded(lambda: _invoke(list(sys.argv[1:] if arguments is None else arguments))))


def _invoke(arguments: list[str]) -> int:
    """The exit code of one command; without any words the help, and 2.

    Raises:
        ToolError: bad usage, or a question that was not answered with yes.
    """
    try:
        code = app(args=arguments or ["--help"], prog_name="opdctl", standalone_mode=False)
    except typer.Abort as error:
        raise ToolError("not confirmed: nothing was done") from error
    except _UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "opdctl"
        raise usage_error(
            " ".join(error.format_message().split()), fix=f"`{path} --help` says what it takes"
        ) from error
    if not arguments:
        return EXIT_USAGE
    return code if isinstance(code, int) else EXIT_OK


if __name__ == "__main__":
    main()
