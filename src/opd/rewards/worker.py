"""The scorer process itself: imports a scorer, runs it on one answer at a time, ends when its parent does."""

import importlib
import inspect
import logging
import math
import pickle
import resource
import sys
from collections.abc import Callable
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from opd.isolation.serving import limit, load_file, orphan_alarm, requests
from opd.rewards.protocol import ConfigurationFault, Failure, ScoreTask, Started, WrongConfiguration
from opd.rewards.scorers import BUILTIN_FUNCTIONS, MAX_ANSWER_CHARS, NO_ANSWER, Score, builtin_call

MAX_DATA_BYTES = 4 << 30
"""A scorer that eats memory gets a MemoryError, so that the kernel has no reason to kill the trainer beside it."""


def main(connection_fd: int) -> None:
    """Serves the connection until it closes."""
    limit(resource.RLIMIT_DATA, MAX_DATA_BYTES)
    with Connection(connection_fd) as connection:
        for request in requests(connection):
            _serve(connection, request)


def _serve(connection: Connection, payload: bytes) -> None:
    """Answers one request: a fault of the configuration, or `Started` and, with a deadline, the result."""
    try:
        task, timeout_s = pickle.loads(payload)
        call, worst_score = _prepared_call(task)
    except Exception as error:  # noqa: BLE001  whatever a module raises on import, no answer is to blame for it
        error_type = TypeError if isinstance(error, TypeError) else ImportError
        message = f"the reward function cannot be called: {type(error).__name__}: {error}"
        connection.send(ConfigurationFault(error_type, message))
        return
    connection.send(Started(worst_score))
    if timeout_s is None:  # asked only whether it could score
        return
    result: Score | Failure | ConfigurationFault
    with orphan_alarm(timeout_s):
        try:
            result = call()
        except WrongConfiguration as error:
            result = ConfigurationFault(WrongConfiguration, str(error))
        except Exception as error:  # noqa: BLE001  the contract: a scorer may raise anything and its answer keeps its row
            result = Failure(f"raised {type(error).__name__}: {error}")
    connection.send(result)


def _prepared_call(task: ScoreTask) -> tuple[Callable[[], Score], float | None]:
    """The call to make, and the worst score that a custom function declares.

    Everything is imported and the arguments are checked, so that only scoring is left to time.
    """
    if task.function in BUILTIN_FUNCTIONS:
        if task.function == "math_verify":
            _preload_math_verify()
        return builtin_call(task.function, task.solution, task.ground_truth, task.kwargs), None
    function = _custom_function(task.function)
    arguments = {
        "data_source": task.data_source,
        "solution_str": task.solution,
        "ground_truth": task.ground_truth,
        "extra_info": task.extra_info,
        **task.kwargs,
    }
    inspect.signature(function).bind(**arguments)
    return lambda: _as_score(function(**arguments)), _declared_worst(function, task.kwargs)


def _declared_worst(function: Callable[..., Any], options: dict[str, Any]) -> float | None:
    """Return the function's attribute `worst_score`, if it has one; a callable one takes the options.

    Raises:
        TypeError: it is not a finite number.
    """
    declared = getattr(function, "worst_score", None)
    if callable(declared):
        declared = declared(**options)
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
    source, _, attribute = name.rpartition(":")
    if source.endswith(".py"):
        module = load_file(Path(source), f"_opd_custom_reward_{Path(source).stem}")
    else:
        module = importlib.import_module(source)
    function: Callable[..., Any] = getattr(module, attribute)
    if not callable(function):
        raise TypeError(f"{name} is a {type(function).__name__}, not a function")
    return function


def _as_score(returned: Any) -> Score:
    """A custom function's number or dict as a Score; `acc` defaults to whether the score is positive.

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


if __name__ == "__main__":
    main(int(sys.argv[1]))
