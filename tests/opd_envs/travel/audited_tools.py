"""The travel tools in a process that may open, run or reach nothing once its first call has begun."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from opd.agent.environments import load_environment
from opd.agent.tools import Tool

TRAVEL = load_environment("travel")


class Nothing(BaseModel):
    """No arguments."""


ALLOWED = {
    # What a call is expected to do: read its request, work in memory, step through a query, answer.
    "pickle.find_class",
    "object.__getattr__",
    "sys._getframe",
    "builtins.id",
    "code.__new__",
}
_audited = False


def _audit(event: str, arguments: tuple) -> None:
    if _audited and event not in ALLOWED:
        raise PermissionError(f"audit: {event} {arguments!r:.200}")


def _run(tool, database, arguments):
    global _audited
    _audited = True
    return tool.run(database, arguments)


sys.addaudithook(_audit)
_CONTROL = Tool(
    "control", "Opens a file: shows that the audit sees it.", Nothing, lambda *_: {"text": Path(__file__).read_text()}
)
TOOLS = {name: tool._replace(run=partial(_run, tool)) for name, tool in TRAVEL.tools.items()}
TOOLS["control"] = _CONTROL._replace(run=partial(_run, _CONTROL))
ENVIRONMENT = replace(TRAVEL, tools=TOOLS)
