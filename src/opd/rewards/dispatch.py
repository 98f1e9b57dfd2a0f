"""From verl's call to a reward row: picks the scorer, runs it here or in the pool, keeps and counts every failure."""

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from opd.rewards.pool import Failure, PoolTask, ScorerPool, scorer_pool
from opd.rewards.scorers import BUILTIN_FUNCTIONS, NO_ANSWER, Score

logger = logging.getLogger(__name__)

DEFAULT_NUM_WORKERS = 2
"""Pool processes in each verl reward worker: about 60 MB each with math-verify loaded, started only when needed."""
_CUSTOM_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LOGGED_PREDICTION_CHARS = 80

RewardRow = dict[str, Any]
"""`score` float (the reward), `acc` float (1.0 right), `pred` str (the extracted answer, "" where there is none),
`failed` int (1 where the scorer hung, raised or died: then score and acc are 0); plus a custom function's breakdown."""


class _Call(NamedTuple):
    """One checked call, ready to run."""

    task: PoolTask
    isolated: bool
    timeout_s: float
    num_workers: int


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    function: str,
    timeout_s: float,
    num_workers: int = DEFAULT_NUM_WORKERS,
    **function_kwargs: Any,
) -> RewardRow:
    """Scores one answer; safe in any thread. Blocks for at most a wait for a free pool worker + `timeout_s`.

    Args:
        data_source: the row's data set, handed to custom functions.
        solution_str: the decoded response.
        ground_truth: the row's `reward_model.ground_truth`.
        extra_info: the row's `extra_info` with what verl adds to it, handed to custom functions; must pickle.
        function: exact_match | math_reward | math_dapo | math_verify, or `package.module:callable`, a function with
            verl's own signature `(data_source, solution_str, ground_truth, extra_info, **kwargs)` that returns a
            number or a dict with `score` and optionally `acc`, `pred` and further numbers. It runs in the pool.
        timeout_s: deadline of one call in the pool, counted from when the scorer starts.
        num_workers: size of this process's pool.
        function_kwargs: passed to the function.

    Raises:
        ValueError: unknown function or a time-out that is not positive.
        ImportError: the function, or a library it is built on, cannot be imported.
        TypeError: arguments that the function does not take or that cannot be pickled.
    """
    call = _checked(
        data_source, solution_str, ground_truth, extra_info, function, timeout_s, num_workers, function_kwargs
    )
    if not call.isolated:
        return _row(call, _run_here(call.task))
    return _row(call, scorer_pool(call.num_workers).score(call.task, timeout_s=call.timeout_s))


async def compute_score_async(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    function: str,
    timeout_s: float,
    num_workers: int = DEFAULT_NUM_WORKERS,
    **function_kwargs: Any,
) -> RewardRow:
    """`compute_score` for an event loop: cheap scorers run at once, pooled ones in the pool's own threads."""
    call = _checked(
        data_source, solution_str, ground_truth, extra_info, function, timeout_s, num_workers, function_kwargs
    )
    if not call.isolated:
        return _row(call, _run_here(call.task))
    pool: ScorerPool = scorer_pool(call.num_workers)
    loop = asyncio.get_running_loop()
    result = await loop.run_in_executor(pool.threads, lambda: pool.score(call.task, timeout_s=call.timeout_s))
    return _row(call, result)


def _checked(
    data_source: str,
    solution: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None,
    function: str,
    timeout_s: float,
    num_workers: int,
    kwargs: dict[str, Any],
) -> _Call:
    if not timeout_s > 0:
        raise ValueError(f"reward timeout_s = {timeout_s!r}: must be a positive number of seconds")
    if num_workers < 1:
        raise ValueError(f"reward num_workers = {num_workers!r}: must be at least 1")
    builtin = BUILTIN_FUNCTIONS.get(function)
    if builtin is None and not _CUSTOM_FUNCTION.fullmatch(function):
        raise ValueError(
            f"reward function = {function!r}: must be one of {', '.join(sorted(BUILTIN_FUNCTIONS))}, "
            "or package.module:callable"
        )
    task = PoolTask(
        function=function,
        data_source=data_source,
        solution=solution,
        ground_truth=ground_truth if builtin is None else str(ground_truth),
        extra_info=dict(extra_info or {}),
        kwargs=kwargs,
    )
    return _Call(task, isolated=builtin is None or builtin.isolated, timeout_s=timeout_s, num_workers=num_workers)


def _run_here(task: PoolTask) -> Score | Failure:
    """Runs a scorer whose work is bounded in this process."""
    scorer = BUILTIN_FUNCTIONS[task.function].scorer
    try:
        return scorer(task.solution, task.ground_truth, **task.kwargs)
    except (ImportError, TypeError):  # a broken installation or configuration, not a difficult answer
        raise
    except Exception as error:  # noqa: BLE001  the contract: one answer's scorer may raise anything and keeps its row
        return Failure(f"raised {type(error).__name__}: {error}")


def _row(call: _Call, result: Score | Failure) -> RewardRow:
    """The row for verl; a failure scores 0, is marked and is logged with what is needed to reproduce it."""
    if isinstance(result, Failure):
        task = call.task
        logger.warning(
            "reward %s failed on data_source=%s index=%s (%s); scored 0 and counted as failed. The answer has %d "
            "characters and ends in %r",
            task.function,
            task.data_source,
            task.extra_info.get("index"),
            result.reason,
            len(task.solution),
            task.solution[-_LOGGED_PREDICTION_CHARS:],
        )
        return {"score": 0.0, "acc": 0.0, "pred": NO_ANSWER, "failed": 1}
    row: RewardRow = {name: float(value) for name, value in result.breakdown.items()}
    row |= {"score": float(result.score), "acc": float(result.acc), "pred": result.pred, "failed": 0}
    return row
