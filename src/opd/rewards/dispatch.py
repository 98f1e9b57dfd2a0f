"""Way from verl's call to a reward row: the scorer runs here or in the pool, and each failure is kept and counted."""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import lru_cache
from pickle import PicklingError
from typing import Any

from opd.isolation.pool import Outcome, ProcessPool
from opd.rewards.scorers import BUILTIN_FUNCTIONS, NO_ANSWER, NO_ANSWER_PREDICTIONS, Score, as_answer
from opd.rewards.worker import Failure, ScoreTask, as_score, builtin_call, scored
from opd.text import storable

logger = logging.getLogger(__name__)

DEFAULT_TRUTH_S = 5.0
NUM_PROCESSES = 2
"""Scorer processes of each rollout process: 66 MB each with math-verify loaded, started only when needed."""
_CUSTOM_FUNCTION = re.compile(r"([A-Za-z_][\w.]*|.+\.py):[A-Za-z_]\w*")
_LOGGED_ANSWER_CHARS = 80

RewardRow = dict[str, Any]
"""`score` float (the reward), `acc` float (1.0 right), `pred` str (the extracted answer, "" where there is none),
`failed` int (1 where the scorer hung, raised or died). Then acc is 0 and score the function's worst.

A custom function adds its breakdown."""

_lowest_seen: dict[str, float] = {}
"""Of each custom function in this process; nothing above 0."""


async def compute_score_async(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    function: str,
    timeout_s: float,
    **function_kwargs: Any,
) -> RewardRow:
    """Score one answer: built-in string work at once, everything else in the pool, by its deadline.

    Args:
        data_source: the row's data set, handed to custom functions.
        solution_str: the decoded response.
        ground_truth: the row's `reward_model.ground_truth`.
        extra_info: the row's `extra_info` with what verl adds to it, handed to custom functions; must pickle.
        function: a name of `BUILTIN_FUNCTIONS`, `package.module:callable` or `path/to/file.py:callable`. A callable has
            verl's own signature `(data_source, solution_str, ground_truth, extra_info, **kwargs)`. It returns a number,
            or a dict with `score` and optionally `acc`, `pred` and further numbers. It runs in the pool.
        timeout_s: deadline of one call in the pool, counted from when the scorer starts.
        function_kwargs: options of a custom function.

    Raises:
        ValueError: unknown function.
        ImportError: the function, or a library it is built on, cannot be imported.
        TypeError: options that the function does not take, or an `extra_info` that cannot be pickled.
    """
    task = ScoreTask(function, data_source, solution_str, ground_truth, dict(extra_info or {}), function_kwargs)
    _check(task)
    if not task.isolated:
        return _row(task, _run_here(task))
    return _row(task, await score_in(_scorer_pool(), task, timeout_s))


def check_function(function: str, **function_kwargs: Any) -> None:
    """Raise what `compute_score_async` would raise of every answer, before there is one; the pool calls no scorer.

    Raises:
        ValueError | ImportError | TypeError: as `compute_score_async`.
    """
    task = ScoreTask(function, "", "", "", {}, function_kwargs)
    _check(task)
    if not task.isolated:
        _run_here(task)
        return
    with closing(new_pool()) as pool:
        result = _result(_submitted(pool, task, None).result())
    if isinstance(result, Failure):
        raise ImportError(f"the reward function cannot be imported: {result.reason}")


_PLAIN_TRUTH = re.compile(r"-?[0-9]+(\.[0-9]+)?|[A-Za-z]+")
_MAX_VERIFIED = 100
"""Ground truths that the killable pool is given: a second and more for each that hangs."""


def misread(function: str, truths: Collection[str]) -> list[str]:
    """Return the ground truths that a built-in function finds wrong as their own answers; none where it is not installed.

    Of a function that needs the pool, only truths that are neither a number nor a word are asked for, at most a hundred.
    """
    isolated = BUILTIN_FUNCTIONS[function].isolated
    asked = [one for one in truths if not _PLAIN_TRUTH.fullmatch(one)][:_MAX_VERIFIED] if isolated else list(truths)
    tasks = [ScoreTask(function, "", as_answer(function, truth), truth, {}, {}) for truth in asked]
    if isolated:
        with closing(new_pool()) as pool:
            outcomes = [_submitted(pool, task, DEFAULT_TRUTH_S) for task in tasks]
            found = [_result(outcome.result()) for outcome in outcomes]
    else:
        try:
            found = [_run_here(task) for task in tasks]
        except ImportError:
            return []
    verdicts = zip(asked, found, strict=True)
    return [truth for truth, result in verdicts if isinstance(result, Failure) or result.acc != 1.0]


def new_pool() -> ProcessPool:
    return ProcessPool("opd.rewards.worker:serve", num_processes=NUM_PROCESSES, name="score")


_scorer_pool = lru_cache(maxsize=1)(new_pool)
"""Returns this process's pool."""


async def score_in(pool: ProcessPool, task: ScoreTask, timeout_s: float) -> Score | Failure:
    """Score one answer in a pool; the process is killed at the deadline and replaced.

    Raises:
        ImportError | TypeError: the scorer cannot be imported, or called with these arguments.
        RuntimeError: the pool is closed.
    """
    return _result(await asyncio.wrap_future(_submitted(pool, task, timeout_s)))


def _result(outcome: Outcome) -> Score | Failure:
    if outcome.failure == "refused":
        raise type(outcome.value)(f"the reward function cannot be called: {outcome.reason}")
    if outcome.failure is not None:
        return Failure(outcome.reason, outcome.note)
    result: Score | Failure = outcome.value
    return result._replace(worst_score=outcome.note) if isinstance(result, Failure) else result


def _submitted(pool: ProcessPool, task: ScoreTask, timeout_s: float | None) -> Future[Outcome]:
    try:
        return pool.submit(task, timeout_s)
    except (PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"reward function {task.function!r} runs in its own process, and the row's extra_info or ground truth "
            f"cannot be pickled: {error}"
        ) from error


def _check(task: ScoreTask) -> None:
    if task.function not in BUILTIN_FUNCTIONS and not _CUSTOM_FUNCTION.fullmatch(task.function):
        raise ValueError(
            f"reward function = {task.function!r}: must be one of {', '.join(sorted(BUILTIN_FUNCTIONS))}, "
            "package.module:callable or /path/to/file.py:callable"
        )


def _run_here(task: ScoreTask) -> Score | Failure:
    """Run a built-in scorer, whose work is bounded, in this process; raise ImportError of a broken installation."""
    return scored(builtin_call(task), ImportError)


def _row(task: ScoreTask, result: Score | Failure) -> RewardRow:
    """Return the row for verl; a failure gets the worst score and a mark, and the log says how to reproduce it."""
    if isinstance(result, Failure):
        score = worst_score(task.function) if result.worst_score is None else float(result.worst_score)
        logger.warning(
            "reward %s failed on data_source=%s index=%s (%s): scored %g, its worst, and counted as failed; "
            "the answer has %d characters and ends in %r",
            task.function,
            task.data_source,
            task.extra_info.get("index"),
            result.reason,
            score,
            len(task.solution),
            task.solution[-_LOGGED_ANSWER_CHARS:],
        )
        return {"score": score, "acc": 0.0, "pred": NO_ANSWER, "failed": 1}
    if task.function not in BUILTIN_FUNCTIONS:
        _lowest_seen[task.function] = min(result.score, _lowest_seen.get(task.function, 0.0))
    return _scored_row(result)


def _scored_row(result: Score) -> RewardRow:
    row: RewardRow = {
        "score": float(result.score),
        "acc": float(result.acc),
        "pred": storable(result.pred),
        "failed": 0,
    }
    return {name: float(value) for name, value in result.breakdown.items()} | row


def row_of_returned(returned: Any) -> RewardRow:
    """Return the row of what an agent program returned, without a `pred` where it names none.

    Raises:
        ValueError | KeyError | TypeError: it is no finite number, and no dict with one as `score`.
    """
    row = _scored_row(as_score(returned))
    return {name: value for name, value in row.items() if (name, value) != ("pred", NO_ANSWER)}


def is_unread(function: str, row: Mapping[str, Any]) -> bool:
    """Return True if a built-in function scored an answer in which it found none; other functions need not report one."""
    return function in BUILTIN_FUNCTIONS and not row.get("failed") and row.get("pred") in NO_ANSWER_PREDICTIONS


def worst_score(function: str) -> float:
    """Return the score of a failed answer, so that hanging a scorer never pays more than a wrong answer.

    That is a built-in function's score of a wrong answer. For a function that declares none it is the lowest score in this
    process, at most 0.
    """
    if function in BUILTIN_FUNCTIONS:
        return BUILTIN_FUNCTIONS[function].worst_score
    return _lowest_seen.get(function, 0.0)
