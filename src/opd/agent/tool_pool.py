"""Tools in killable processes: calls from any event loop, each under a deadline, without files to write."""

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from opd.agent.environments import Environment, load_environment
from opd.agent.tools import BadArguments, ToolReply, parse_arguments, render
from opd.isolation.pool import ProcessPool
from opd.isolation.serving import Handle, limit

logger = logging.getLogger(__name__)

MAX_DATA_BYTES = 1 << 30
"""A tool that eats memory gets a MemoryError, so that the kernel has no reason to kill the rollout."""
MAX_REPLY_CHARS = 262_144
"""A longer reply is cut here already; the conversation truncates it to some thousand tokens."""
_MAX_FAULT_CHARS = 500


class ToolCall(NamedTuple):
    """One call as the tool process gets it."""

    name: str
    arguments: Mapping[str, Any]
    episode_seed: int | None
    case_id: str | None


class ToolPoolError(RuntimeError):
    """Tools cannot run at all: no fault of a call, so no answer for a model."""


class ToolPool:
    """At most `num_processes` processes that answer tool calls; each is replaced after a hang or a death.

    Args:
        database_dir: the database folder; the environment verifies it here, once.
        num_processes: tool processes, about 40 MB each, started when first needed.
        timeout_s: deadline of one call, from when a process takes it up.
        toolset: name of the environment (`opd.agent.environments.load_environment`).

    Raises:
        ManifestError: the folder is no intact database.
        NoEnvironment: no such environment.
    """

    def __init__(self, database_dir: str | Path, *, num_processes: int, timeout_s: float, toolset: str) -> None:
        verify_database = load_environment(toolset).verify_database
        if verify_database is not None:
            verify_database(Path(database_dir))
        self._timeout_s = timeout_s
        arguments = (str(Path(database_dir).resolve()), toolset)
        self._pool = ProcessPool(f"{__name__}:serve", arguments, num_processes=num_processes, name="tool")

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, episode_seed: int | None = None, case_id: str | None = None
    ) -> ToolReply:
        """Run one tool of the environment; an error of the call is a reply.

        Args:
            arguments: as the model wrote them.
            episode_seed: the row's `extra_info["episode_seed"]`.
            case_id: the row's `extra_info["case_id"]` (`Environment.needs_case`).

        Raises:
            ToolPoolError: the pool is closed, or its processes cannot be started.
        """
        try:
            future = self._pool.submit(ToolCall(name, arguments, episode_seed, case_id), self._timeout_s)
            outcome = await asyncio.wrap_future(future)
        except RuntimeError as error:
            raise ToolPoolError(f"tools cannot be run: {error}") from error
        if outcome.failure is None:
            reply: ToolReply = outcome.value
            if reply.fault is not None:
                logger.warning("tool %s raised %s", name, reply.fault)
            return reply._replace(seconds=outcome.seconds)
        if outcome.failure in ("not_started", "refused"):
            raise ToolPoolError(f"tools cannot be run: {outcome.reason}; the process's standard error says why")
        logger.warning("tool %s: %s; its process is replaced", name, outcome.reason)
        if outcome.failure == "late":
            return _error("timeout", f"{name} gave {outcome.reason}", outcome.seconds)
        return _error("crashed", f"{name} failed: its process died", outcome.seconds)

    def close(self) -> None:
        """End the tool processes."""
        self._pool.close()


def _error(kind: str, message: str, seconds: float = 0.0, fault: str | None = None) -> ToolReply:
    """Return an error that no arguments are to blame for, as the model reads it."""
    text = render({"error": kind, "message": f"{message}; try other arguments or another tool"})
    return ToolReply(text, kind, seconds, fault)


def serve(database_dir: str, toolset: str) -> Handle:
    """Open the database in a tool process and return its handler of calls."""
    environment = load_environment(toolset)
    database = environment.open_database(database_dir)
    _confine()
    return lambda call: (partial(_answer, environment, database, call), None)


def _confine() -> None:
    """Let the kernel refuse files and much memory from here.

    Text that tools print is dropped: standard error may be a file, which the first limit would turn into a fault.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(null, standard)
    os.close(null)
    for kind, value in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, MAX_DATA_BYTES)):
        limit(kind, value)


def _answer(environment: Environment, database: Any, call: ToolCall) -> ToolReply:
    try:
        tool = environment.tools[call.name]
        arguments = parse_arguments(tool, call.arguments)
        return ToolReply(render(tool.run(_view(database, call), arguments))[:MAX_REPLY_CHARS])
    except BadArguments as error:
        kind = "bad_arguments"
        return ToolReply(render({"error": kind, "message": str(error)}), kind)
    except Exception as error:  # noqa: BLE001  the contract: a tool may raise anything and its trajectory continues
        fault = f"{type(error).__name__}: {error}"[:_MAX_FAULT_CHARS]
        return _error("crashed", f"{call.name} failed ({type(error).__name__})", fault=fault)


def _view(database: Any, call: ToolCall) -> Any:
    """Return the row's part of the database."""
    if call.case_id is not None and hasattr(database, "in_case"):
        return database.in_case(call.case_id)
    return database.in_episode(call.episode_seed) if hasattr(database, "in_episode") else database
