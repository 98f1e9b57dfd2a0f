"""The reward of a run with tools: the function that its environment names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from opd.agent.environments import load_environment
from opd.isolation.serving import load_named


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    toolset: str,
    **options: Any,
) -> Any:
    """Score an answer by the reward of the environment `toolset`; `options` are the function's own (`database_dir`)."""
    return _function(toolset)(data_source, solution_str, ground_truth, extra_info, **options)


def worst_score(*, toolset: str, **_: Any) -> float | None:
    """Return the lowest score that the environment's reward declares; None where it declares none."""
    return getattr(_function(toolset), "worst_score", None)


compute_score.worst_score = worst_score  # type: ignore[attr-defined]


@lru_cache(maxsize=4)
def _function(toolset: str) -> Callable[..., Any]:
    """Load the reward that an environment names.

    Raises:
        NoEnvironment: there is no such environment.
        ImportError: it names no reward, or one that cannot be imported.
    """
    name = load_environment(toolset).reward
    if not name:
        raise ImportError(no_reward(toolset))
    function: Callable[..., Any] = load_named(name, "_opd_reward")
    return function


def no_reward(toolset: str) -> str:
    """Return the rule that an environment without a reward breaks."""
    return f"agent.toolset = {toolset} has no reward of its own"
