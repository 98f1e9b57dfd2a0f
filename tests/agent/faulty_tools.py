"""The travel tools and some that hang, raise, or answer at length: a toolset for runs under test."""

import time
from dataclasses import replace

from pydantic import BaseModel

from opd.agent.environments import load_environment
from opd.agent.tools import Tool

TRAVEL = load_environment("travel")


class Nothing(BaseModel):
    """No arguments."""


def _hang(_, __):
    time.sleep(3600)
    return {}


def _raise(_, __):
    raise RuntimeError("a fault of the tool")


def _long(_, __):
    return {"text": "长" * 3000}


def _ping(_, __):
    return {"ok": 1}


TOOLS = {
    **TRAVEL.tools,
    **{
        name: Tool(name, name, Nothing, run)
        for name, run in {"hang": _hang, "raise": _raise, "long": _long, "ping": _ping}.items()
    },
}
ENVIRONMENT = replace(TRAVEL, tools=TOOLS)
