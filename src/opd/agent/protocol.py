"""What travels between the tool pool and its worker processes, and what the pool tells its caller."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from opd.agent.toolset import render

ErrorClass = Literal["bad_json", "unknown_tool", "bad_arguments", "timeout", "crashed"]


class ToolCall(NamedTuple):
    """One call, as a worker gets it."""

    name: str
    arguments: str | Mapping[str, Any]
    episode_seed: int | None
    timeout_s: float
    case_id: str | None = None
    """Of a toolset whose database holds a part of its own for each task."""
    state: str | None = None
    """Of a toolset that keeps one: the conversation's, None at its beginning."""


class WorkerReply(NamedTuple):
    """What a worker answers."""

    text: str
    error: ErrorClass | None
    fault: str | None = None
    """What the tool itself raised, for the log; the model reads only that it failed."""
    state: str | None = None
    """The conversation's new state; None: as before."""


class Ready(NamedTuple):
    """A worker has imported its tools and opened the database."""


class ToolReply(NamedTuple):
    """What became of a call."""

    text: str
    """What the model reads, errors included."""
    error: ErrorClass | None
    """The kind of failure for metrics; None: the call succeeded."""
    seconds: float
    """From when a process took the call up to its answer, kill included."""
    queued_s: float = 0.0
    """Before that: the wait for a free process."""
    state: str | None = None
    """The conversation's new state (`Toolset.keeps_state`); None: as before, as after every failure."""


def error_text(error: ErrorClass, message: str) -> str:
    """An error as the model reads it."""
    return render({"error": error, "message": message})
