"""Rules about a value of each stage, and about one that a run has and that a stage may have of its own."""

from __future__ import annotations

from collections.abc import Iterator

from opd.config.base import Kind
from opd.config.defaults import DISTILS
from opd.config.rule import Rule


def of_each_stage(key: str, when: str, *, rule: str, fix: str, kinds: tuple[Kind, ...] = DISTILS) -> Rule:
    """A rule about a key of every stage, `item` in `when`."""
    return Rule(
        each="opd.stages", key=f"opd.stages.{{index}}.{key}", value=f"item.{key}", when=when, rule=rule, fix=fix, kinds=kinds
    )  # fmt: skip


def of_run_and_stages(key: str, stage_key: str, holds: str, when: str, *, rule: str, fix: str) -> Iterator[Rule]:
    """A rule about a value of `opd` and the same of each stage that has one of its own.

    Args:
        key, stage_key: the value's under `opd` and within a stage.
        holds: the condition on the value for which the rule is meant, put behind it.
    """
    yield Rule(key=key, when=f"{key} {holds} and {when}", rule=rule, fix=fix, kinds=DISTILS)
    own = f"item.{stage_key}"
    yield of_each_stage(stage_key, f"{own} is not None and {own} {holds} and {when}", rule=rule, fix=fix)


def where_rewarded(when: str, *, rule: str, fix: str) -> Iterator[Rule]:
    """A rule about a run or a stage that has a policy gradient."""
    return of_run_and_stages("opd.policy.weight", "policy_weight", "> 0", when, rule=rule, fix=fix)


def where_loss_is(kinds: str, when: str, *, rule: str, fix: str) -> Iterator[Rule]:
    """A rule about some of the losses of a run or a stage."""
    return of_run_and_stages("opd.loss_type", "loss_type", f"in {kinds}", when, rule=rule, fix=fix)
