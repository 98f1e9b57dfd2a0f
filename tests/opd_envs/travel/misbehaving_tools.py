"""Tools that hang, die, raise, eat memory, write, and print: what the pool must survive. Beside the real ones."""

import ctypes
import os
import time
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from opd.agent.environments import load_environment
from opd.agent.tools import Tool

TRAVEL = load_environment("travel")


class Nothing(BaseModel):
    """No arguments."""


class Target(BaseModel):
    """A path."""

    path: str


def _hang(_, __):
    time.sleep(3600)
    return {}


def _hang_in_c(_, __):
    ctypes.PyDLL(None).sleep(3600)  # holds the interpreter's lock: no Python code runs in this process
    return {}


def _die(_, __):
    os._exit(3)


def _raise(_, __):
    raise RuntimeError("a fault of the tool")


def _eat(_, __):
    return {"length": len(bytearray(8 << 30))}


def _write(_, arguments):
    Path(arguments.path).write_text("written")
    return {}


def _not_json(_, __):
    return {"value": object()}


def _pid(_, __):
    return {"pid": os.getpid()}


_MISBEHAVING = {
    "hang": _hang,
    "hang_in_c": _hang_in_c,
    "die": _die,
    "raise": _raise,
    "eat": _eat,
    "not_json": _not_json,
    "pid": _pid,
}
TOOLS = {
    **TRAVEL.tools,
    **{name: Tool(name, name, Nothing, run) for name, run in _MISBEHAVING.items()},
    "write": Tool("write", "write", Target, _write),
}
ENVIRONMENT = replace(TRAVEL, tools=TOOLS)
