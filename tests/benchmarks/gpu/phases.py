"""Loaded into every verl process of `bench_step`: how many answers a step has and how long each is, phase by phase of one run.

`VERL_USE_EXTERNAL_MODULES` names this module. A random model never ends an answer, so the benchmark says when it does; and
one process start, which takes minutes, serves batches of several sizes.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from tests.after_import import change_after_import

PHASES = "OPD_BENCH_PHASES"
SIGMA = 0.8  # of the logarithm: the longest of 128 answers is about six times as long as the mean


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Some steps of `rows` answers of `tokens` tokens each, or with `mean` of log-normal lengths up to it."""

    name: str
    rows: int
    tokens: int
    steps: int
    mean: int | None = None

    def length(self, *place: int) -> int:
        """Tokens of the answer to a prompt of the data, the same in every run, step and schedule."""
        if self.mean is None:
            return self.tokens
        draw = random.Random(repr(place)).gauss(0.0, SIGMA)
        return min(self.tokens, max(1, round(self.mean * math.exp(draw - SIGMA**2 / 2))))


def as_text(phases: Sequence[Phase]) -> str:
    """For the environment."""
    return json.dumps([asdict(phase) for phase in phases])


def phase_of(phases: Sequence[Phase], step: int) -> Phase:
    """The one that a step from 1 on is of."""
    for phase in phases:
        if step <= phase.steps:
            return phase
        step -= phase.steps
    raise ValueError(f"step {step} after the last phase")


def _own() -> list[Phase]:
    return [Phase(**phase) for phase in json.loads(os.environ[PHASES])]


def _set_answers(config, phases: Sequence[Phase], step: int) -> None:
    """How many answers each prompt of this step has, in the config of one process."""
    config.actor_rollout_ref.rollout.n = phase_of(phases, step).rows // config.data.train_batch_size


def _bound(worker) -> None:
    """Have answers their phase's lengths, in this class of rollout workers."""
    phases, original = _own(), worker._trajectory

    async def trajectory(self, batch, place, sample):
        if not batch.given:  # else carried, and complete
            phase = phase_of(phases, batch.step)
            batch = replace(batch, max_tokens=phase.length(int(batch.prompts[place]["index"]), sample))
        return await original(self, batch, place, sample)

    worker._trajectory = trajectory


def _in_process(module) -> None:
    _bound(module.RolloutWorker)


def _in_actors(module) -> None:
    """An actor imports its own module first of all, too early for the change of it, so it gets a class that travels with the change."""
    import ray

    from opd.rollout.worker import RolloutActor

    class Bound(RolloutActor.__ray_metadata__.modified_class):
        pass

    _bound(Bound)
    module.RolloutActor = ray.remote(Bound)


def _sized(module) -> None:
    phases, original = _own(), module.Sampled.ask

    def ask(self, job, step):
        _set_answers(job.config, phases, step)
        return original(self, job, step)

    module.Sampled.ask = ask


def _carried(module) -> None:
    """Under the schedule carry a run has one phase: rows outlast a step."""
    phase, original = _own()[0], module.Carry._begun

    def begun(self, drawn):
        return original(self, [(index, sample, phase.length(index, sample)) for index, sample, _ in drawn])

    module.Carry._begun = begun


if PHASES in os.environ:
    change_after_import(
        {
            "opd.rollout.worker": _in_process,
            "opd.rollout.manager": _in_actors,
            "opd.kinds": _sized,
            "opd.rollout.carry": _carried,
        }
    )
