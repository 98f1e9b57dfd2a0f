"""Judging a plan: every commonsense constraint, and those hard ones that the task asks for, each by its name."""

from collections.abc import Iterable
from typing import NamedTuple

from opd.envs.travel.case import Case, Check, Verdict
from opd.envs.travel.commonsense import COMMONSENSE
from opd.envs.travel.database import Database
from opd.envs.travel.hard_constraints import HARD
from opd.envs.travel.itinerary import follow
from opd.envs.travel.plan import Plan
from opd.envs.travel.task import Trip

# Without these a plan is not one of the trip that was asked for, and meets no demand of it.
_PRECONDITIONS = ("days_complete", "entries_exist", "route_closed")
_MAX_VIOLATIONS = 20
_COMMONSENSE_SHARE = 0.5


class Judgement(NamedTuple):
    """What became of every constraint of a task."""

    commonsense: tuple[Verdict, ...]
    hard: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether every constraint is satisfied."""
        return all(verdict.satisfied for verdict in (*self.commonsense, *self.hard))

    @property
    def score(self) -> float:
        """In [0, 1]: half for the share of commonsense constraints, half for that of the hard ones; all of the first
        where nothing is demanded. 1 exactly where everything is satisfied."""
        if not self.hard:
            return satisfied_share(self.commonsense)
        return _COMMONSENSE_SHARE * satisfied_share(self.commonsense) + (1 - _COMMONSENSE_SHARE) * satisfied_share(
            self.hard
        )


def satisfied_share(verdicts: Iterable[Verdict]) -> float:
    """Share of the verdicts that are satisfied."""
    every = [verdict.satisfied for verdict in verdicts]
    return sum(every) / len(every)


def judge(plan: Plan, task: Trip, database: Database) -> Judgement:
    """Judges a plan in the database of its episode.

    Raises:
        KeyError: the task names a city that the database does not have.
    """
    case = Case(task, plan, follow(plan, task, database))
    commonsense = tuple(_verdict(name, check, case) for name, check in COMMONSENSE.items())
    unmet = [v.name for v in commonsense if v.name in _PRECONDITIONS and not v.satisfied]
    asked = [name for name, _ in task.hard.asked()]
    if unmet:
        hard = tuple(Verdict(name, (f"not looked at, since {unmet[0]} is violated",)) for name in asked)
    else:
        hard = tuple(_verdict(name, HARD[name], case) for name in asked)
    return Judgement(commonsense, hard)


def no_plan(task: Trip, reason: str) -> Judgement:
    """The judgement of an answer that holds no plan: everything is violated."""
    return Judgement(
        tuple(Verdict(name, (reason,)) for name in COMMONSENSE),
        tuple(Verdict(name, (reason,)) for name, _ in task.hard.asked()),
    )


def _verdict(name: str, check: Check, case: Case) -> Verdict:
    violations = []
    for violation in check(case):
        violations.append(violation)
        if len(violations) == _MAX_VIOLATIONS:
            break
    return Verdict(name, tuple(violations))
