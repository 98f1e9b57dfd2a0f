"""The record of a scenario, and the list of all scenarios in the order of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.context import Context


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One row of the table: what is done, what is promised, and the function that does it and returns what it observed.

    `run` raises Broken, naming the promise, where one was not kept. With `has_own_reference` it does not compare with the
    run that scenarios share.
    """

    name: str
    done: str
    promised: str
    run: Callable[[Context], str]
    has_own_reference: bool = False


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *, done: str, promised: str, has_own_reference: bool = False
) -> Callable[[Callable[[Context], str]], Callable[[Context], str]]:
    """Enters the decorated function under its own name."""

    def enter(run: Callable[[Context], str]) -> Callable[[Context], str]:
        name = run.__name__
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(
            name=name, done=done, promised=promised, run=run, has_own_reference=has_own_reference
        )
        return run

    return enter
