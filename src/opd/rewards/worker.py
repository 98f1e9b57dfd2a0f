"""The child's side of the scorer pool: imports a scorer, runs it on one answer at a time, ends when its parent does."""

import importlib
import inspect
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

from opd.rewards.pool import ConfigurationFault, Failure, PoolTask, Started
from opd.rewards.scorers import BUILTIN_FUNCTIONS, NO_ANSWER, Score

MAX_DATA_BYTES = 4 << 30
"""A scorer that eats memory gets a MemoryError, so that the kernel has no reason to kill the trainer beside it."""
PARENT_POLL_S = 5.0
ORPHAN_GRACE_S = 5.0
"""How long after the deadline the kernel's alarm ends this process if its parent is no longer there to kill it."""


def main(connection_fd: int) -> None:
    """Serves the connection until it closes."""
    _limit_memory()
    parent = os.getppid()
    with Connection(connection_fd) as connection:
        while True:
            while not connection.poll(PARENT_POLL_S):
                if os.getppid() != parent:  # a fork of the parent may hold the connection open
                    return
            try:
                task, timeout_s = connection.recv()
            except EOFError:
                return
            _serve(connection, task, timeout_s)


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MAX_DATA_BYTES if hard == resource.RLIM_INFINITY else min(MAX_DATA_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _serve(connection: Connection, task: PoolTask, timeout_s: float) -> None:
    try:
        call = _bound_call(task)
    except (ImportError, AttributeError, TypeError) as error:
        kind = "TypeError" if isinstance(error, TypeError) else "ImportError"
        connection.send(ConfigurationFault(kind, f"reward function {task.function!r}: {error}"))
        return
    connection.send(Started())
    # The default action of SIGALRM ends the process even inside C code that never returns to Python.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout_s + ORPHAN_GRACE_S)
    try:
        result: Score | Failure = call()
    except Exception as error:  # noqa: BLE001  a scorer may raise anything; the answer keeps its row and is counted
        result = Failure(f"raised {type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    connection.send(result)


def _bound_call(task: PoolTask) -> Callable[[], Score]:
    """The call to make, with its arguments checked against the function's signature."""
    builtin = BUILTIN_FUNCTIONS.get(task.function)
    if builtin is not None:
        scorer = builtin.scorer
        _preload(task.function)
        inspect.signature(scorer).bind(task.solution, task.ground_truth, **task.kwargs)
        return lambda: scorer(task.solution, task.ground_truth, **task.kwargs)
    function = _custom_function(task.function)
    arguments = {
        "data_source": task.data_source,
        "solution_str": task.solution,
        "ground_truth": task.ground_truth,
        "extra_info": task.extra_info,
        **task.kwargs,
    }
    inspect.signature(function).bind(**arguments)
    return lambda: _score_of(function(**arguments))


@lru_cache(maxsize=8)
def _preload(function: str) -> None:
    """Imports what the scorer imports by itself, before the deadline's clock starts."""
    if function == "math_verify":
        importlib.import_module("math_verify")


@lru_cache(maxsize=8)
def _custom_function(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module_name), attribute)
    if not callable(function):
        raise TypeError(f"{attribute} is a {type(function).__name__}, not a function")
    return function


def _score_of(returned: Any) -> Score:
    """A custom function's number or dict as a Score; `acc` defaults to whether the score is positive."""
    if not isinstance(returned, dict):
        value = float(returned)
        return Score(value, float(value > 0), NO_ANSWER)
    value = float(returned["score"])
    acc = float(returned.get("acc", value > 0))
    pred = returned.get("pred")
    breakdown = {
        name: float(number) for name, number in returned.items() if name not in ("score", "acc", "pred", "failed")
    }
    return Score(value, acc, NO_ANSWER if pred is None else str(pred), breakdown)


if __name__ == "__main__":
    main(int(sys.argv[1]))
