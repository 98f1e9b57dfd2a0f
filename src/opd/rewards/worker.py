"""One answer to score, and the scorer process: it imports a scorer and runs it on one answer at a time."""

import importlib
import inspect
import logging
import math
import resource
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from opd.isolation.serving import Handle, limit, load_named
from opd.rewards.scorers import BUILTIN_FUNCTIONS, MAX_ANSWER_CHARS, NO_ANSWER, Score

MAX_DATA_BYTES = 4 << 30
"""A scorer that eats memory gets a MemoryError, so that the kernel has no reason to kill the trainer."""


class ScoreTask(NamedTuple):
    """One answer to score."""

    function: str
    """A name in `BUILTIN_FUNCTIONS`, `package.module:callable` or `path/to/file.py:callable`."""
    data_source: str
    solution: str
    ground_truth: Any
    extra_info: dict[str, Any]
    kwargs: dict[str, Any]

    @property
    def isolated(self) -> bool:
        """True if the pool must run it: built-in string work is bounded, other code may hang."""
        builtin = BUILTIN_FUNCTIONS.get(self.function)
        return builtin is None or builtin.isolated


class Failure(NamedTuple):
    """The reason why an answer has no score."""

    reason: str
    worst_score: float | None = None
    """The lowest score that a custom function declares (`function.worst_score`); None means that it declares none."""


def builtin_call(task: ScoreTask) -> Callable[[], Score]:
    """Return the checked call of a built-in scorer; it reads a number as ground truth as its text.

    Raises:
        TypeError: the task has options, and built-in scorers take none.
    """
    if task.kwargs:
        raise TypeError(f"reward function {task.function} has no option {', '.join(task.kwargs)}: it takes none")
    return partial(BUILTIN_FUNCTIONS[task.function].scorer, task.solution, str(task.ground_truth))


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
        return partial(scored, builtin_call(task)), None
    function = _custom_function(task.function)
    arguments = {
        "data_source": task.data_source,
        "solution_str": task.solution,
        "ground_truth": task.ground_truth,
        "extra_info": task.extra_info,
        **task.kwargs,
    }
    inspect.signature(function).bind(**arguments)
    return partial(scored, lambda: as_score(function(**arguments))), _declared_worst(function)


def scored(call: Callable[[], Score], raised: type[Exception] | tuple[()] = ()) -> Score | Failure:
    """Return what a scorer says of an answer; it may raise anything, and its answer keeps its row.

    Args:
        raised: errors of the installation and not of the answer, which the caller gets.
    """
    try:
        return call()
    except raised:
        raise
    except Exception as error:  # noqa: BLE001  see above
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


def as_score(returned: Any) -> Score:
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
