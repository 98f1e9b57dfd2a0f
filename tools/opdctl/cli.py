"""The list of commands; the end of each becomes an exit code."""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from opdctl.console import EXIT_OK, EXIT_USAGE, run_guarded, usage_error

USAGE = "Usage: opdctl COMMAND ...   (opdctl COMMAND --help, opdctl --version, opdctl --install-completion)\n"
EPILOG = """A RUN is its name (in a namespace or below --store), or the path or URL of its directory.
Exit codes: 0 done, 1 failure, 2 bad spec or usage, 130 interrupted.
"""
# Commands by the groups of `opdctl --help`; each is a function of its own name in a module of its own name.
GROUPS = {
    "Start": ("keys", "render", "doctor", "submit"),
    "Watch": ("list", "status", "logs"),
    "End": ("cancel", "delete"),
    "Results": ("collect", "compare", "report"),
}
NAMES = [name for names in GROUPS.values() for name in names]
# A class of click in older versions of typer and of typer in newer versions; only its subclasses have public names.
_UsageError: Any = typer.BadParameter.__base__
_AT_ITS_CALL: Any = None


class Program(TyperGroup):
    """The program: it imports a command's module when the command is called.

    Its help is one screen of plain text: to import rich takes longer than a command.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(NAMES, _AT_ITS_CALL)  # click names the nearest of these for a misspelt one

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in NAMES:
            return None
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        own = _own(cmd_name)
        alone.command(cmd_name)(getattr(import_module(f"opdctl.commands.{own}"), own))
        return typer.main.get_command(alone)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(USAGE)
        for title, names in GROUPS.items():
            formatter.write(f"{title}:\n")
            formatter.write_dl([(f"  {name}", _gist(_own(name))) for name in names])
        formatter.write(EPILOG)


def _own(name: str) -> str:
    """Return the name of a command's function and module: `list` is a builtin."""
    return {"list": "list_runs"}.get(name, name)


def _gist(own: str) -> str:
    """Return the first clause of a command's help, as its source has it: the import of all commands takes long."""
    source = (Path(__file__).parent / "commands" / f"{own}.py").read_text(encoding="utf-8")
    found = re.search(rf'^def {own}\(.*?"""(.*?)[:;.]', source, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


app = typer.Typer(
    name="opdctl",
    cls=Program,
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    sys.exit(run_guarded(lambda: _invoke(list(sys.argv[1:] if arguments is None else arguments))))


def _invoke(arguments: list[str]) -> int:
    """Run one command and return its exit code; without words print the help and return 2."""
    try:
        code = app(args=arguments or ["--help"], prog_name="opdctl", standalone_mode=False)
    except _UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "opdctl"
        message = " ".join(error.format_message().split())
        raise usage_error(message, fix=f"`{path} --help` shows the options") from error
    if not arguments:
        return EXIT_USAGE
    return code if isinstance(code, int) else EXIT_OK
