"""Names the charts of a report: which metrics are drawn, under which title, in which unit and order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from opd.runs.headline import (
    ACCURACY_KEYS,
    ENTROPY_KEYS,
    GRAD_NORM_KEYS,
    LOSS_KEYS,
    MEMORY_KEYS,
    SCORE_KEYS,
    STEP_SECONDS_KEYS,
    THROUGHPUT_KEYS,
    VALIDATION_LOSS,
)
from opd.runs.metrics import RESERVED_KEYS

VALIDATION = "Validation"
OTHER = "All other metrics"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart: the first of `metrics` that a run logged, times `scale`, in `unit`."""

    section: str
    title: str
    unit: str = ""
    metrics: tuple[str, ...]
    scale: float = 1.0

    @property
    def is_shown(self) -> bool:
        """Whether a page opens with it; the others are chosen from a list."""
        return self.section != OTHER


# fmt: off
PANELS = (
    Panel(section=VALIDATION, title="Loss on the given answers", unit="nats", metrics=(VALIDATION_LOSS,)),
    Panel(section="Learning", title="Loss", metrics=LOSS_KEYS),
    Panel(section="Learning", title="Divergence from the teacher", unit="nats", metrics=("opd/divergence",)),
    Panel(section="Learning", title="Policy loss", metrics=("opd/policy_loss",)),
    Panel(section="Learning", title="Weight of the divergence in the loss", metrics=("opd/divergence_weight",)),
    Panel(section="Learning", title="Weight of the policy loss", metrics=("opd/policy_weight",)),
    Panel(section="Learning", title="Answers as good as their prompt's mean", unit="%", metrics=("opd/advantage_zero",), scale=100),
    Panel(section="Learning", title="Entropy of the student", unit="nats", metrics=ENTROPY_KEYS),
    Panel(section="Learning", title="Accuracy of the training answers", unit="%", metrics=ACCURACY_KEYS, scale=100),
    Panel(section="Learning", title="Score of the training answers, mean", metrics=SCORE_KEYS),
    Panel(section="Learning", title="Gradient norm", metrics=GRAD_NORM_KEYS),
    Panel(section="Learning", title="Learning rate", metrics=("opd/lr", "actor/lr")),
    Panel(section="Rollouts", title="Response length, mean", unit="tokens", metrics=("response_length/mean",)),
    Panel(section="Rollouts", title="Responses cut at the limit", unit="%", metrics=("response_length/clip_ratio",), scale=100),
    Panel(section="Rollouts", title="Age of the trained tokens, mean", unit="updates", metrics=("rollout/age_mean",)),
    Panel(section="Rollouts", title="Responses carried over an update", unit="%", metrics=("rollout/carried_share",), scale=100),
    Panel(section="Rollouts", title="Turns, mean", metrics=("opd/num_turns/mean", "num_turns/mean")),
    Panel(section="Speed and memory", title="Step time", unit="s", metrics=STEP_SECONDS_KEYS),
    Panel(section="Speed and memory", title="Throughput", unit="tokens/s", metrics=THROUGHPUT_KEYS),
    Panel(section="Speed and memory", title="GPU memory, highest", unit="GiB", metrics=MEMORY_KEYS),
)
# fmt: on
# Of every row, and no measurement.
_NO_CHART = {*RESERVED_KEYS, "training/global_step"}


def panels_of(names: Collection[str]) -> list[Panel]:
    """Charts for metrics of these names: validation accuracies, PANELS, then each remaining metric by name."""
    core = sorted(name for name in names if _is_validation(name))
    first = [*map(_validation, core), *PANELS]
    taken = {name for panel in first for name in panel.metrics} | _NO_CHART
    return first + [Panel(section=OTHER, title=name, metrics=(name,)) for name in sorted(names) if name not in taken]


def _is_validation(name: str) -> bool:
    return name.startswith("val-core/") and "/acc/mean@" in name and not name.endswith("/stderr")


def _validation(name: str) -> Panel:
    *source, _, statistic = name.split("/")[1:]
    title = f"{'/'.join(source)} {statistic}"
    return Panel(section=VALIDATION, title=title, unit="%", metrics=(name,), scale=100)
