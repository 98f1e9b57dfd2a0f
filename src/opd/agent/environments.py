"""Environments: the tools, reward and data of a world as one record, found by a registered name or by a user's own."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from opd.agent.tools import Tool, schema_of
from opd.experiment.sections import MCP
from opd.isolation.serving import load_named

GROUP = "opd.environments"
"""Group of entry points: a package registers `name = "package.module:RECORD"`."""
DEFAULT_TOOLSET = "travel"
"""Registered name of the environment of a run that sets no `agent.toolset`."""
RECORD = "ENVIRONMENT"
"""Name of the record in a module or file that `agent.toolset` names without one."""
TOY_PREFIX = "agent://"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A world in which a model acts: its tools, and the names of what scores and prepares its tasks."""

    tools: Mapping[str, Tool]
    """By name, in the order of the prompt."""
    open_database: Callable[[str], Any]
    """Takes the database folder; each tool process calls it once. A tool gets `.in_episode(extra_info.episode_seed)`
    where the database has this method, else the database."""
    verify_database: Callable[[Path], object] | None = None
    """Raises ManifestError or another ValueError for a damaged folder; each pool of tool processes calls it once."""
    needs_case: bool = False
    """Each row names its `extra_info.case_id`, and tools get the database's `.in_case(case_id)`."""
    reward: str = ""
    """`package.module:function` or `file.py:function` with the signature of a custom reward; empty: none."""
    prepare: str = ""
    """Command that makes the data, for messages."""
    toy: str = ""
    """Module with `MODELS`, folders by name, and `place(name, folder, seed=...)`, for `agent://NAME`."""


class NoEnvironment(ImportError):
    """An `agent.toolset` that names no environment; the text is one line."""


@lru_cache(maxsize=8)
def load_environment(name: str) -> Environment:
    """Load an environment by a registered name, `package.module[:RECORD]`, `path/to/file.py[:RECORD]` or `mcp:SERVER`.

    Raises:
        NoEnvironment: there is none of this name, or its module cannot be imported.
    """
    registered = {point.name: point for point in entry_points(group=GROUP)}
    own = name if ":" in name else f"{name}:{RECORD}"
    try:
        if name.startswith(MCP):
            found = importlib.import_module("opd.agent.mcp_tools").environment(name.removeprefix(MCP))
        else:
            found = registered[name].load() if name in registered else load_named(own, "_opd_environment")
    except Exception as error:  # a module may raise anything as it is imported
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise NoEnvironment(f"agent.toolset = {name}: {reason}{_known(name, registered)}") from error
    if not isinstance(found, Environment):
        raise NoEnvironment(f"agent.toolset = {name}: must be an opd.agent.Environment, found {type(found).__name__}")
    wrong = [key for key, tool in found.tools.items() if not isinstance(tool, Tool) or tool.name != key]
    if wrong:
        raise NoEnvironment(f"agent.toolset = {name}: tools[{wrong[0]!r}] must be a Tool of this name")
    return found


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, *, toolset: str, **options: Any
) -> Any:
    """Score an answer by the reward of the environment `toolset`; `options` are the function's own (`database_dir`)."""
    return _reward(toolset)(data_source, solution_str, ground_truth, extra_info, **options)


@lru_cache(maxsize=4)
def _reward(toolset: str) -> Callable[..., Any]:
    """Load the reward that an environment names.

    Raises:
        ImportError: there is no such environment, or it names no reward, or one that cannot be imported.
    """
    name = load_environment(toolset).reward
    if not name:
        raise ImportError(no_reward(toolset))
    function: Callable[..., Any] = load_named(name, "_opd_reward")
    return function


def no_reward(toolset: str) -> str:
    """Return the rule that an environment without a reward breaks."""
    return f"agent.toolset = {toolset} has no reward of its own"


def source_of(name: str) -> str | None:
    """Return the Python file that an `agent.toolset` names; None where it names a module or a registered environment."""
    source = name.partition(":")[0]
    return source if source.endswith(".py") else None


def _known(name: str, registered: Mapping[str, object]) -> str:
    names = ", ".join(sorted(registered)) or "none: install the package opd again"
    near = difflib.get_close_matches(name, registered, n=1)
    return f"; registered are {names}{f'; did you mean {near[0]}?' if near else ''}"


def tool_schemas(toolset: str) -> list[dict[str, Any]]:
    """Return the descriptions of an environment's tools in their order, as a chat template takes them."""
    return [schema_of(tool) for tool in load_environment(toolset).tools.values()]


def toy_models() -> dict[str, Path]:
    """Return the folders of the default environment's tiny models by `agent://NAME`; none where it is not installed."""
    try:
        module = importlib.import_module(load_environment(DEFAULT_TOOLSET).toy)
    except ImportError:
        return {}
    return {TOY_PREFIX + name: folder for name, folder in module.MODELS.items()}


def toy_place(path: str, folder: Path, *, seed: int) -> str:
    """Return the local path of `agent://NAME`, written to `folder` first where it is no model; others as they are.

    Raises:
        ValueError: an unknown name.
    """
    if not path.startswith(TOY_PREFIX):
        return path
    module = importlib.import_module(load_environment(DEFAULT_TOOLSET).toy)
    return str(module.place(path.removeprefix(TOY_PREFIX), folder, seed=seed))
