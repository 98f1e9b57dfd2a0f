"""The rules between keys of a spec, which verl or the trainer would only notice in the middle of a run: a table by subject, and the rules that no table holds."""

from __future__ import annotations

from opd.config.errors import Problem
from opd.config.kinds import BaseSpec, RunSpec
from opd.config.rule import broken, with_named
from opd.config.rules.basics import BASICS
from opd.config.rules.carry import CARRY
from opd.config.rules.importance import IMPORTANCE
from opd.config.rules.loss import LOSS
from opd.config.rules.stages import STAGES
from opd.config.rules.store import STORE
from opd.config.rules.teachers import TEACHERS, unlike_offloads
from opd.config.rules.terms import SIZES

RULES = (*BASICS, *TEACHERS, *LOSS, *IMPORTANCE, *STAGES, *CARRY)
"""For every kind that starts verl, in the order in which they are told. A key that has a default which keeps the rule is compared only where it is given: the charts'
values have no such default."""


def check(spec: BaseSpec) -> list[Problem]:
    """Every broken rule of the spec, in the order of the tables."""
    tree = spec.model_dump(mode="json")
    problems = list(broken(STORE, tree))
    if not isinstance(spec, RunSpec):
        return problems
    problems += broken(RULES, with_named(tree, SIZES))
    return problems + list(unlike_offloads(spec))
