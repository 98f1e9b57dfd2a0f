"""The few metrics in a run's line of a list; kinds of runs log them under different names, the first in a row counts."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

Value = TypeVar("Value")

VALIDATION_PREFIX = "val-core/"
VALIDATION_LOSS = "val-aux/loss"
LOSS_KEYS = ("opd/loss", "actor/pg_loss", "actor/loss")
ACCURACY_KEYS = ("opd/accuracy",)
SCORE_KEYS = ("critic/score/mean",)  # means of the scorer's values, on a scale of its own
ENTROPY_KEYS = ("opd/entropy", "actor/entropy")
GRAD_NORM_KEYS = ("opd/grad_norm", "actor/grad_norm")
STEP_SECONDS_KEYS = ("timing_s/step",)
THROUGHPUT_KEYS = ("perf/throughput",)
# GiB, in spite of verl's name.
MEMORY_KEYS = ("perf/max_memory_allocated_gb", "actor/perf/max_memory_allocated_gb")
SKIPPED_KEYS = ("opd/skipped", "opd/skipped_step", "actor/skipped")
LEAST, MOST = "/rank_min", "/rank_max"  # suffixes of a metric's extremes over ranks
JUDGED_TOKENS = 50  # or pairs of them: a share or a spread of fewer is chance
MAX_STEP = 2**63 - 1  # the largest in a column


class Score(NamedTuple):
    """The quality of a run's answers."""

    value: float
    is_share: bool  # True for a share of right answers, which alone may be shown in percent


def first_of(metrics: Mapping[str, Value], keys: tuple[str, ...]) -> Value | None:
    """Return the value of the first key in the row, else None."""
    return next((metrics[key] for key in keys if key in metrics), None)


def score(latest: Mapping[str, float]) -> Score | None:
    """Return held-out accuracy of the first validation set, else the rollouts' own score, by each metric's last value."""
    held_out = min(filter(_is_held_out, latest), default=None)
    return rollout_score(latest) if held_out is None else Score(latest[held_out], is_share=True)


def rollout_score(latest: Mapping[str, float]) -> Score | None:
    """Return the rollouts' accuracy, else the mean of their scorer's values."""
    accuracy, mean = first_of(latest, ACCURACY_KEYS), first_of(latest, SCORE_KEYS)
    if accuracy is not None:
        return Score(accuracy, is_share=True)
    return None if mean is None else Score(mean, is_share=False)


def validation_scores(metrics: dict[str, Any]) -> dict[str, float]:
    """Return `val-core` means by data source: {source: accuracy or reward}; of supervised fine-tuning {"loss": loss}."""
    scores = {"loss": float(metrics[VALIDATION_LOSS])} if VALIDATION_LOSS in metrics else {}
    for key, value in metrics.items():
        parts = key.split("/")
        if parts[0] == "val-core" and parts[-1].startswith("mean@"):
            scores["/".join(parts[1:-2])] = float(value)
    return scores


def is_headline(name: str) -> bool:
    """Return True for a metric in a run's line of a list: its loss, score or pace."""
    known = (*LOSS_KEYS, *ACCURACY_KEYS, *SCORE_KEYS, *STEP_SECONDS_KEYS, *THROUGHPUT_KEYS)
    return name in known or _is_held_out(name)


def total_steps(spec: Mapping[str, Any], result: Mapping[str, Any] | None) -> int | None:
    """Return the length of the run, None where neither the spec nor the result has it."""
    trainer, steps = spec.get("trainer"), (result or {}).get("steps")
    total = trainer.get("total_steps", steps) if isinstance(trainer, Mapping) else steps
    return total if isinstance(total, int) and not isinstance(total, bool) and 0 <= total <= MAX_STEP else None


def seconds_left(step: int | None, total_steps: int | None, step_s: float | None) -> float | None:
    """Return seconds to the last step at the last step's pace; None where one of the three is not known."""
    if step is None or total_steps is None or step_s is None:
        return None
    return max(total_steps - step, 0) * step_s


def _is_held_out(name: str) -> bool:
    return name.startswith(VALIDATION_PREFIX) and "/acc/mean@" in name and not name.endswith("stderr")
