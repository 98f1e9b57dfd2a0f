"""A phone book's tool and tools that hang, die, raise, eat memory and write: the pool must survive them."""

import ctypes
import os
import time
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel
from tests.agent.book import ENVIRONMENT as BOOK

from opd.agent.tools import Tool


class Target(BaseModel):
    """A path."""

    path: str = ""


def _raise(_, __):
    raise RuntimeError("a fault of the tool")


_MISBEHAVING = {
    "hang": lambda *_: time.sleep(3600),
    "hang_in_c": lambda *_: ctypes.PyDLL(None).sleep(3600),  # keeps the interpreter's lock: no Python code runs here
    "die": lambda *_: os._exit(3),
    "raise": _raise,
    "eat": lambda *_: {"length": len(bytearray(8 << 30))},
    "not_json": lambda *_: {"value": object()},
    "pid": lambda *_: {"pid": os.getpid()},
    "write": lambda _, target: {"written": Path(target.path).write_text("written")},
}
ENVIRONMENT = replace(
    BOOK, tools={**BOOK.tools, **{name: Tool(name, name, Target, run) for name, run in _MISBEHAVING.items()}}
)
