"""The tool pool, parent's side: calls from any event loop, each in a killable process under a deadline."""

import asyncio
import logging
import pickle
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from opd.agent.environments import DEFAULT_TOOLSET, load_environment
from opd.agent.tools import Ready, ToolCall, ToolReply, WorkerReply, error_text
from opd.isolation.pool import ChildProcess, ProcessPool

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""A fresh process that imports its tools on a busy machine; 0.3 s on an idle one."""


class ToolPoolError(RuntimeError):
    """Tools cannot be run at all: no fault of a call, so no answer for a model."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"tools cannot be run: {reason}")


class _Request(NamedTuple):
    call: ToolCall
    queued_at: float


class ToolPool(ProcessPool[ChildProcess, _Request, ToolReply]):
    """At most `num_processes` processes that answer tool calls; each is replaced after a hang or a death.

    A call waits only for a free process: one that hangs holds up its own process until its deadline and nothing else.

    Args:
        database_dir: the database folder; the hashes of ours are verified here, once.
        num_processes: tool processes, about 40 MB each, started when first needed.
        timeout_s: deadline of one call, from when a process takes it up.
        toolset: name of the environment (`opd.agent.environments.load_environment`).

    Raises:
        ManifestError: the folder is no intact database.
        NoEnvironment: no such environment.
        ValueError: a number that must be positive and is not.
    """

    def __init__(
        self,
        database_dir: str | Path,
        *,
        num_processes: int,
        timeout_s: float,
        toolset: str = DEFAULT_TOOLSET,
    ) -> None:
        if num_processes < 1:
            raise ValueError(f"num_processes = {num_processes}: must be at least 1")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s = {timeout_s}: must be a positive number of seconds")
        verify_database = load_environment(toolset).verify_database
        if verify_database is not None:
            verify_database(Path(database_dir))
        self._arguments = (str(Path(database_dir).resolve()), toolset)
        self._timeout_s = timeout_s
        super().__init__(num_processes=num_processes, name="tool")

    async def call(
        self,
        name: str,
        arguments: str | Mapping[str, Any],
        *,
        episode_seed: int | None = None,
        case_id: str | None = None,
        state: str | None = None,
    ) -> ToolReply:
        """Runs one tool.

        Args:
            name: as the model wrote it; an unknown one is an answer with error `unknown_tool`.
            arguments: JSON text as the model wrote it, or parsed.
            episode_seed: the row's `extra_info["episode_seed"]`: whose prices the tools tell.
            case_id: the row's `extra_info["case_id"]`: whose entries they see (`Environment.needs_case`).
            state: the conversation's, from the last reply that had one (`Environment.keeps_state`).

        Raises:
            ToolPoolError: the pool is closed, or its processes cannot be started.
            TypeError | AttributeError: arguments that cannot be pickled; none that came as JSON.
        """
        return await asyncio.wrap_future(
            self.submit(name, arguments, episode_seed=episode_seed, case_id=case_id, state=state)
        )

    def submit(
        self,
        name: str,
        arguments: str | Mapping[str, Any],
        *,
        episode_seed: int | None = None,
        case_id: str | None = None,
        state: str | None = None,
    ) -> "Future[ToolReply]":
        """`call` for threads; cancelling the future before a process takes it up drops the call."""
        call = ToolCall(str(name), arguments, episode_seed, self._timeout_s, case_id, state)
        return self._submit(_Request(call, time.monotonic()))

    def _spawn(self) -> ChildProcess:
        return ChildProcess("opd.agent.tool_worker", self._arguments)

    def _await_ready(self, child: ChildProcess) -> None:
        try:
            if isinstance(child.receive(START_TIMEOUT_S), Ready):
                return
            reason = "said something else before it was ready"
        except TimeoutError:
            reason = f"not ready after {START_TIMEOUT_S:g} s"
        except (EOFError, OSError):
            reason = f"ended{child.exit_status()} before it was ready"
        raise ToolPoolError(f"a tool process {reason}; its standard error says why")

    def _closed_error(self) -> Exception:
        return ToolPoolError("their pool is closed")

    def _ask(self, child: ChildProcess, request: _Request) -> ToolReply:
        started = time.monotonic()
        queued_s = started - request.queued_at
        name = request.call.name
        try:
            message = pickle.dumps(request.call)
        except RecursionError:
            text = error_text("bad_arguments", f"the arguments of {name} are nested too deeply")
            return ToolReply(text, "bad_arguments", time.monotonic() - started, queued_s)
        try:
            child.connection.send_bytes(message)
            answer: WorkerReply = child.receive(self._timeout_s)
        except TimeoutError:
            logger.warning("tool %s gave no answer in %g s: its process is killed and replaced", name, self._timeout_s)
            child.kill()
            text = error_text(
                "timeout", f"{name} gave no answer in {self._timeout_s:g} s; try other arguments or another tool"
            )
            return ToolReply(text, "timeout", time.monotonic() - started, queued_s)
        except (EOFError, OSError):
            if self._closed:
                raise ToolPoolError("their pool was closed") from None
            logger.warning("tool %s: its process died%s; it is replaced", name, child.exit_status())
            child.kill()
            text = error_text("crashed", f"{name} failed: its process died; try other arguments or another tool")
            return ToolReply(text, "crashed", time.monotonic() - started, queued_s)
        if answer.fault is not None:
            logger.warning("tool %s raised %s", name, answer.fault)
        return ToolReply(answer.text, answer.error, time.monotonic() - started, queued_s, answer.state)
