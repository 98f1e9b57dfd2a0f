"""Tools of an MCP server as an environment (`agent.toolset: mcp:COMMAND` or `mcp:URL`).

Each tool process has a session of its own, and a server of its own where a command starts it.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Self

from anyio.from_thread import start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters
from pydantic import BaseModel, ConfigDict

from opd.agent.environments import Environment
from opd.agent.tools import BadArguments, Reply, Tool

START_S = 60.0
"""Limit of a server's start and of its list of tools."""
NO_LIMIT_S = 1e9
"""Limit of a call: the tool process ends at `agent.call_timeout_s`, and its server with it."""
_CONNECTION_CLOSED = -32000
_WITH_PARENT = "import ctypes, os, sys; getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
"""Program that becomes a server which Linux kills with its tool process: `mcp` gives a server a process group of its own."""


class AnyArguments(BaseModel):
    """Arguments that the server checks."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Session:
    """A session with a server, for a thread without an event loop.

    Args:
        target: a URL, or the words of a command.
    """

    def __init__(self, target: str) -> None:
        words = shlex.split(target)
        server: Any = target
        if "://" not in words[0]:
            server = StdioServerParameters(command=sys.executable, args=["-c", _WITH_PARENT, *words])
        try:
            with ExitStack() as ends:
                self._portal = ends.enter_context(start_blocking_portal())
                client = Client(server, read_timeout_seconds=START_S)
                self._client = ends.enter_context(self._portal.wrap_async_context_manager(client))
                self._ends = ends.pop_all()
        except Exception as error:
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise ConnectionError(f"the server does not start a session: {first}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def tools(self) -> list[Any]:
        """Return the server's tools, as `mcp` describes them."""
        found, cursor = list[Any](), None
        while True:
            page = self._portal.call(partial(self._client.list_tools, cursor=cursor))
            found += page.tools
            if not (cursor := page.next_cursor):
                return found

    def call(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        """Return a tool's answer; a lost server ends this process, which the pool replaces with its server.

        Raises:
            BadArguments: the server's error, for the model.
        """
        try:
            call = partial(self._client.call_tool, name, dict(arguments), read_timeout_seconds=NO_LIMIT_S)
            result = self._portal.call(call)
        except MCPError as error:
            if error.error.code == _CONNECTION_CLOSED:
                os._exit(1)
            raise BadArguments(str(error)) from error
        text = "\n".join(getattr(block, "text", f"({block.type}, which is no text)") for block in result.content)
        if result.is_error:
            raise BadArguments(text)
        found = result.structured_content
        if found is None:
            with suppress(ValueError, RecursionError):
                found = json.loads(text)
        return found if isinstance(found, dict | list) else {"text": text}


def environment(target: str) -> Environment:
    """Return the environment of a server's tools; it has no reward, and its database is the session."""
    with Session(target) as session:
        listed = session.tools()

    def run(name: str, session: Session, arguments: BaseModel) -> Reply:
        return session.call(name, arguments.model_dump())

    tools = [
        Tool(one.name, one.description or "", AnyArguments, partial(run, one.name), one.input_schema) for one in listed
    ]
    return Environment(tools={tool.name: tool for tool in tools}, open_database=lambda _: Session(target))
