"""The scorer process: imports a scorer, and runs it on one answer at a time (`opd.isolation.serving`)."""

import importlib
import inspect
import logging
import math
import resource
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from opd.isolation.serving import Handle, limit, load_named
from opd.rewards.scorers import (
    BUILTIN_FUNCTIONS,
    MAX_ANSWER_CHARS,
    NO_ANSWER,
    Failure,
    Score,
    ScoreTask,
    builtin_call,
)

MAX_DATA_BYTES = 4 << 30
"""A scorer that eats memory gets a MemoryError, so that the kernel has no reason to kill the trainer."""


def serve() -> Handle:
    """Limit the process's memory and return its handler of score tasks."""
    limit(resource.RLIMIT_DATA, MAX_DATA_BYTES)
    return _handle


def _handle(task: ScoreTask) -> tuple[Callable[[], Score | Failure], float | None]:
    """Return the call, and the worst score that a custom function declares.

    The imports and the check of the arguments are done here, so that the deadline bounds scoring alone.
    """
    if task.function in BUILTIN_FUNCTIONS:
        if task.function == "math_verify":
            _preload_math_verify()
        return partial(_scored, builtin_call(task)), None
    function = _custom_function(task.function)
    arguments = {
        "data_source": task.data_source,
        "solution_str": task.solution,
        "ground_truth": task.ground_truth,
        "extra_info": task.extra_info,
        **task.kwargs,
    }
    inspect.signature(function).bind(**arguments)
    return partial(_scored, lambda: _as_score(function(**arguments))), _declared_worst(function)


def _scored(call: Callable[[], Score]) -> Score | Failure:
    try:
        return call()
    except Exception as error:  # noqa: BLE001  the contract: a scorer may raise anything and its answer keeps its row
        return Failure(f"raised {type(error).__name__}: {error}")


def _declared_worst(function: Callable[..., Any]) -> float | None:
    """Return the function's attribute `worst_score`, if it has one.

    Raises:
        TypeError: it is not a finite number.
    """
    declared = getattr(function, "worst_score", None)
    if declared is not None and not (isinstance(declared, int | float) and math.isfinite(declared)):
        raise TypeError(f"its worst_score is {declared!r}: must be a finite number")
    return declared


@lru_cache(maxsize=1)
def _preload_math_verify() -> None:
    importlib.import_module("math_verify")
    # It warns, per process, that its own time-outs are off: here the pool's deadline replaces them.
    logging.getLogger("math_verify").setLevel(logging.ERROR)


@lru_cache(maxsize=8)
def _custom_function(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = load_named(name, "_opd_custom_reward")
    if not callable(function):
        raise TypeError(f"{name} is a {type(function).__name__}, not a function")
    return function


def _as_score(returned: Any) -> Score:
    """Return a custom function's number or dict as a Score; `acc` defaults to whether the score is positive.

    Raises:
        ValueError: a score that is not finite, which would poison the whole batch.
        KeyError | TypeError: no `score`, or a further entry that is not a number.
    """
    fields = dict(returned) if isinstance(returned, dict) else {"score": returned}
    score = float(fields.pop("score"))
    if not math.isfinite(score):
        raise ValueError(f"the score is {score}")
    acc = float(fields.pop("acc", score > 0))
    pred = fields.pop("pred", None)
    breakdown = {name: float(value) for name, value in fields.items()}
    return Score(score, acc, NO_ANSWER if pred is None else str(pred)[:MAX_ANSWER_CHARS], breakdown)
