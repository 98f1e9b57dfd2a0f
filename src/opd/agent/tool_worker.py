"""The tool process itself: opens the database, answers one call at a time, ends when its parent does."""

import os
import pickle
import resource
import sys
from multiprocessing.connection import Connection
from typing import Any

from opd.agent.environments import Environment, load_environment
from opd.agent.tools import (
    MAX_STATE_CHARS,
    BadArguments,
    BadJson,
    Changed,
    Ready,
    ToolCall,
    WorkerReply,
    error_text,
    parse_arguments,
    render,
    shown,
)
from opd.isolation.serving import limit, orphan_alarm, requests

MAX_DATA_BYTES = 1 << 30
"""A tool that eats memory gets a MemoryError, so that the kernel has no reason to kill the rollout beside it."""
MAX_REPLY_CHARS = 262_144
"""A longer reply is cut here already: it is to be truncated to some thousand tokens anyway."""
MAX_FAULT_CHARS = 500


def main(connection_fd: int, database_dir: str, toolset: str) -> None:
    """Serves the connection until it closes."""
    found = load_environment(toolset)
    database = found.open_database(database_dir)
    _confine()
    with Connection(connection_fd) as connection:
        connection.send(Ready())
        for request in requests(connection):
            call: ToolCall = pickle.loads(request)
            with orphan_alarm(call.timeout_s):
                reply = _answer(found, database, call)
            connection.send(reply)


def _confine() -> None:
    """No tool needs to write a file or much memory: from here on the kernel refuses both.

    What tools print is dropped: standard error may be a file, which the first limit would turn into a fault.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(null, standard)
    os.close(null)
    for kind, value in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, MAX_DATA_BYTES)):
        limit(kind, value)


def _answer(environment: Environment, database: Any, call: ToolCall) -> WorkerReply:
    tool = environment.tools.get(call.name)
    if tool is None:
        message = f"there is no tool {shown(call.name)}; the tools are {', '.join(environment.tools)}"
        return WorkerReply(error_text("unknown_tool", message), "unknown_tool")
    state = None
    try:
        arguments = parse_arguments(tool, call.arguments)
        view = _view(database, call)
        reply = tool.run(view.with_state(call.state) if environment.keeps_state else view, arguments)
        if isinstance(reply, Changed):
            reply, state = reply
            if len(state) > MAX_STATE_CHARS:
                raise BadArguments(
                    f"after {call.name} too much would be kept: at most {MAX_STATE_CHARS} characters are"
                )
        text = render(reply)
    except BadJson as error:
        return WorkerReply(error_text("bad_json", str(error)), "bad_json")
    except BadArguments as error:
        return WorkerReply(error_text("bad_arguments", str(error)), "bad_arguments")
    except Exception as error:  # noqa: BLE001  the contract: a tool may raise anything and its trajectory goes on
        message = f"{call.name} failed ({type(error).__name__}); try other arguments or another tool"
        return WorkerReply(
            error_text("crashed", message), "crashed", f"{type(error).__name__}: {error}"[:MAX_FAULT_CHARS]
        )
    return WorkerReply(text[:MAX_REPLY_CHARS], None, state=state)


def _view(database: Any, call: ToolCall) -> Any:
    """What of the database this row's tools see."""
    if call.case_id is not None and hasattr(database, "in_case"):
        return database.in_case(call.case_id)
    return database.in_episode(call.episode_seed) if hasattr(database, "in_episode") else database


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
