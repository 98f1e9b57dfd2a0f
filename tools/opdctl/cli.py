"""The list of commands; the end of each becomes an exit code."""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from opdctl.console import EXIT_OK, EXIT_USAGE, ToolError, run_guarded, usage_error

USAGE = "Usage: opdctl COMMAND ...   (opdctl COMMAND --help, opdctl --version, opdctl --install-completion)\n"
EPILOG = """A RUN is its name (in a namespace or below --store), or the path or URL of its directory.
Exit codes: 0 done, 1 failure, 2 bad spec or usage, 130 interrupted.
"""
# Commands by the groups of `opdctl --help`; each is a function of its own name in a module of its own name.
GROUPS = {
    "Start": ("init", "render", "doctor", "submit"),
    "Watch": ("list", "status", "logs", "wait"),
    "End": ("cancel", "delete"),
    "Results": ("collect", "compare", "report", "pull"),
}
# A class of click in older versions of typer and of typer in newer versions; only its subclasses have public names.
_UsageError: Any = typer.BadParameter.__base__


class Grouped(TyperGroup):
    """The program, with its help on one screen of plain text: to import rich takes longer than a command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(USAGE)
        for title, names in GROUPS.items():
            formatter.write(f"{title}:\n")
            formatter.write_dl([(f"  {name}", _gist(self.commands[name].help or "")) for name in names])
        formatter.write(EPILOG)


def _gist(text: str) -> str:
    """Return the first clause of a help text."""
    return re.split(r"[:;.]", text)[0]


app = typer.Typer(
    name="opdctl",
    cls=Grouped,
    rich_markup_mode=None,
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
    """Run experiments on a cluster and read their results."""


for name in (name for names in GROUPS.values() for name in names):
    own = {"list": "list_runs"}.get(name, name)
    app.command(name)(getattr(import_module(f"opdctl.commands.{own}"), own))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    sys.exit(run_guarded(lambda: _invoke(list(sys.argv[1:] if arguments is None else arguments))))


def _invoke(arguments: list[str]) -> int:
    """Run one command and return its exit code; without words print the help and return 2."""
    try:
        code = app(args=arguments or ["--help"], prog_name="opdctl", standalone_mode=False)
    except typer.Abort as error:
        raise ToolError("not confirmed: nothing was done") from error
    except _UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "opdctl"
        message = " ".join(error.format_message().split())
        raise usage_error(message, fix=f"`{path} --help` shows the options") from error
    if not arguments:
        return EXIT_USAGE
    return code if isinstance(code, int) else EXIT_OK


if __name__ == "__main__":
    main()
