"""What the schedule carry is not for, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from opd.config.defaults import ASKS, SAMPLES
from opd.config.rule import Rule
from opd.config.rules.run_and_stages import of_each_stage, where_loss_is, where_rewarded

_CARRIES = 'rollout.schedule == "carry"'


def _where_carried() -> Iterator[Rule]:
    """What the schedule carry is not for, and what it needs."""
    strict = "use rollout.schedule: strict"
    for kinds, rule in (
        (("grpo",), "a policy gradient compares a prompt's answers with one another, and corrects by one model's probabilities of them"),
        (("opd-agent",), "a conversation with tools would have to keep the state of its tools over an update"),
        (ASKS, "nothing is trained here, so nothing is carried over an update"),
    ):  # fmt: skip
        yield Rule(key="rollout.schedule", when=_CARRIES, rule=rule, fix=strict, kinds=kinds)
    yield Rule(
        key="opd.reward_beta",
        when=f"{_CARRIES} and opd.reward_beta is not None",
        rule="reward weighting compares the answers of one prompt, which rollout.schedule carry trains on in different updates",
        fix=f"{strict}, or remove opd.reward_beta",
        kinds=("opd",),
    )
    yield from (
        replace(rule, kinds=("opd",))
        for rule in (
            *where_rewarded(
                _CARRIES,
                rule="a policy gradient compares the answers of one prompt, which rollout.schedule carry trains on in different updates",
                fix=f"{strict}, or a weight of 0",
            ),
            *where_loss_is(
                '("sampled_reverse_kl",)',
                _CARRIES,
                rule="it estimates the reverse KL from tokens of the student as it is, and rollout.schedule carry trains on earlier weights' tokens",
                fix=f"{strict}, or reverse_kl, which is exact whoever wrote the tokens",
            ),
            of_each_stage(
                "rollouts",
                f'{_CARRIES} and item.rollouts == "teacher"',
                rule="answers that are read from a file are complete: there is nothing to carry over an update",
                fix=f"{strict}, or rollouts: student",
            ),
        )
    )
    yield Rule(
        key="opd.horizon.applies",
        when=f'{_CARRIES} and opd.horizon.applies == "generate"',
        rule="under rollout.schedule carry an answer is begun in one step and ends in another, whose horizon may be a different one",
        fix=f"{strict}, or applies: train",
        kinds=("opd",),
    )
    yield Rule(
        key="rollout.in_flight",
        when=f"{_CARRIES} and in_flight < step_rows",
        rule="fewer answers at once than an update trains on ({step_rows}) would leave nothing to carry",
        fix="use at least {step_rows}; twice as many is the default",
        kinds=("opd",),
    )
    to_train = "in_flight + max(in_flight - step_rows, step_rows)"  # rows in hand, less those of the next update
    yield Rule(
        key="rollout.max_age",
        when=f"{_CARRIES} and in_flight >= step_rows and {to_train} > max_age * step_rows",
        rule="with {in_flight} answers at once (rollout.in_flight) and {step_rows} an update, some would wait longer for theirs",
        fix=f"use at least {{ceil_div({to_train}, step_rows)}}, or a smaller rollout.in_flight",
        kinds=("opd",),
    )
    kept = f"{_CARRIES} and rollout.keep_prefixes"
    yield Rule(
        key="rollout.keep_prefixes",
        when=f"{kept} and rollout.free_cache_engine",
        rule="the server's keys and values are lost with the memory that it gives back while the models train",
        fix="set rollout.free_cache_engine: false, where its cache fits beside the training, or keep_prefixes: false",
        kinds=("opd",),
    )
    yield Rule(
        key="rollout.keep_prefixes",
        when=f'{kept} and not rollout.free_cache_engine and rollout.name == "cpu"',
        rule="the rollout server `cpu` has no prefix cache",
        fix="remove the key, or set rollout.name: vllm",
        kinds=("opd",),
    )
    uncached = (
        '"enable_prefix_caching" in keys(rollout.engine_kwargs) and not rollout.engine_kwargs["enable_prefix_caching"]'
    )
    yield Rule(
        key="rollout.keep_prefixes",
        when=f"{kept} and not rollout.free_cache_engine and {uncached}",
        rule="the keys and values lie in the server's prefix cache, which rollout.engine_kwargs.enable_prefix_caching: false switches off",
        fix="remove one of the two",
        kinds=("opd",),
    )
    yield Rule(
        key="rollout.keep_prefixes",
        when='rollout.keep_prefixes and rollout.schedule != "carry"',
        rule="it belongs to rollout.schedule carry; no response of strict goes on over an update",
        fix="remove the key, or set rollout.schedule: carry",
        kinds=SAMPLES,
    )
    for key in ("rollout.in_flight", "rollout.max_age"):
        yield Rule(
            key=key,
            when=f'{key} is not None and rollout.schedule != "carry"',
            rule="it belongs to rollout.schedule carry; strict generates a step's answers at once, by the newest weights",
            fix="remove the key, or set rollout.schedule: carry",
            kinds=SAMPLES,
        )


CARRY = tuple(_where_carried())
