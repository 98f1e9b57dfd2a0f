"""Stage of each step of a distillation, a function of the step alone.

PACED, https://arxiv.org/abs/2603.11178, goes from a forward to a reverse KL at half of the steps. Since nothing but the step
decides, a resumed run needs no more than its checkpoint's number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from opd.experiment.algorithm import Opd, Stage


def step_at(point: float, total_steps: int) -> int:
    """Return the step that a key names: `point` from 1 on, below 1 that share of `total_steps` as written, rounded down."""
    return int(point) if point >= 1 else int(Fraction(str(point)) * total_steps)


def last_steps(untils: Sequence[float | None], *, total_steps: int) -> tuple[int, ...]:
    """Return the last step of each stage; steps count from 1, and the last stage takes all that are left."""
    ends = [total_steps if until is None else step_at(until, total_steps) for until in untils[:-1]]
    for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end <= begin:
            raise ValueError(
                f"stage {number + 1} of {len(untils)} would end with step {end} of {total_steps} and begin with step {begin + 1}"
            )
    return (*ends, max(total_steps, *ends, 0))


def params_of(opd: Opd, stage: Opd | Stage) -> dict[str, Any]:
    """Return the parameters of a stage's own divergence, with the values of keys that only one divergence has."""
    keys: dict[str, dict[str, Any]] = {"jsd": {"beta": stage.beta or 0.0}, "topk_reverse_kl": {"top_k": opd.top_k or 0}}
    return stage.loss_params | keys.get(stage.loss_type or "", {})


class Weights(NamedTuple):
    """The weights of the two terms of the loss."""

    divergence: float
    policy: float


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The stages, each with its own loss, and their last steps."""

    opd: Opd
    stages: tuple[Stage, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, opd: Opd, *, total_steps: int) -> "Schedule":
        """Return the schedule of an experiment; without stages it is one stage."""
        loss = {"loss_type": opd.loss_type, "loss_params": opd.loss_params, "beta": opd.beta}
        stages = opd.stages or (Stage(),)
        return cls(
            opd=opd,
            stages=tuple(stage if stage.loss_type else stage.model_copy(update=loss) for stage in stages),
            ends=last_steps([stage.until for stage in stages], total_steps=total_steps),
        )

    def number(self, step: int) -> int:
        """Return the place of a step's stage, from 0."""
        return min(sum(step > end for end in self.ends), len(self.stages) - 1)

    def stage(self, step: int) -> Stage:
        return self.stages[self.number(step)]

    def weights_at(self, step: int) -> Weights:
        """Return the weights of a step: its stage's own, or the run's."""
        stage, opd = self.stage(step), self.opd
        return Weights(
            opd.divergence_weight if stage.divergence_weight is None else stage.divergence_weight,
            opd.policy.weight if stage.policy_weight is None else stage.policy_weight,
        )
