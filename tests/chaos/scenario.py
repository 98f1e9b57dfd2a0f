"""The record of a scenario, and all scenarios in the order of the table."""

from collections.abc import Callable
from typing import NamedTuple

from tests.chaos.context import Context


class Scenario(NamedTuple):
    """One row of the table; `run` returns its observation, and raises Broken with the promise that was not kept."""

    done: str
    promised: str
    run: Callable[[Context], str]


SCENARIOS: dict[str, Scenario] = {}


def scenario(*, done: str, promised: str) -> Callable[[Callable[[Context], str]], Callable[[Context], str]]:
    """Enter the decorated function under its own name."""

    def enter(run: Callable[[Context], str]) -> Callable[[Context], str]:
        SCENARIOS[run.__name__] = Scenario(done, promised, run)
        return run

    return enter
