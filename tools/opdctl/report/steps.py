"""Tables over a run's steps: the parts of a step's time, and validations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opd.runs.headline import STEP_SECONDS_KEYS, VALIDATION_PREFIX
from opdctl.runs.history import series
from opdctl.runs.tables import number, with_error

UPDATE = "timing_s/update_actor"
# What is measured within the update, by name.
WITHIN_UPDATE = {"teacher": "timing/teacher_s", "student": "timing/student_s", "choice of tokens": "timing/score_s"}
OTHERS = {
    "rollout": "timing_s/gen",
    "reward": "timing_s/reward",
    "old log-probabilities": "timing_s/old_log_prob",
    "reference": "timing_s/ref",
    "weights to the rollout": "timing_s/update_weights",
    "checkpoint": "timing_s/save_checkpoint",
    "validation": "timing_s/testing",
    "pass rates": "timing_s/pass_rates",
}
MIN_SHARE = 0.002
"""Smaller parts are in the rest."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the mean step, `start` and `share` in percent of it."""

    name: str
    seconds: float
    start: float
    share: float


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A run's mean step in seconds, with its validations and measured pass rates, and its parts in their order; they add up to
    it."""

    seconds: float
    parts: tuple[Part, ...]


def step_time(table: pa.Table) -> StepTime | None:
    """Of a run's metrics; None where it measured no step. A part that not every step has, such as a checkpoint, counts
    as 0 in the others."""
    steps = next((both[1] for name in STEP_SECONDS_KEYS if len((both := series(table, name))[1])), np.empty(0))
    total = _sum(steps)
    if total <= 0:
        return None
    found = {name: _sum(series(table, metric)[1]) for name, metric in OTHERS.items()}
    # verl stops the step's clock before it validates, and the trainer leaves the measuring of pass rates out.
    total += found["validation"] + found["pass rates"]
    within = {name: _sum(series(table, metric)[1]) for name, metric in WITHIN_UPDATE.items()}
    update = _sum(series(table, UPDATE)[1]) - sum(within.values())
    ordered = (
        {"rollout": found.pop("rollout")} | within | {"other update" if any(within.values()) else "update": update}
    )
    named = {name: seconds for name, seconds in (ordered | found).items() if seconds > MIN_SHARE * total}
    named["rest"] = max(total - sum(named.values()), 0.0)
    whole = sum(named.values())
    parts, start = [], 0.0
    for name, seconds in named.items():
        share = 100 * seconds / whole
        parts.append(Part(name=name, seconds=seconds / len(steps), start=start, share=share))
        start += share
    return StepTime(seconds=total / len(steps), parts=tuple(parts))


def _sum(values: np.ndarray) -> float:
    return float(values[np.isfinite(values) & (np.abs(values) < 1e12)].sum())


@dataclass(frozen=True, kw_only=True)
class ValidationRow:
    """One score of one data set in one run, as the page shows it."""

    run_id: str
    name: str
    num: int
    first: str
    best: str
    best_step: int
    last: str


def validation_rows(run_id: str, table: pa.Table) -> list[ValidationRow]:
    """Every core score that a run logged; `best` is the highest."""
    names = [name for name in table.column_names if name.startswith(VALIDATION_PREFIX) and not name.endswith("/stderr")]
    rows = []
    for name in sorted(names):
        steps, values = series(table, name)
        errors = dict(zip(*(column.tolist() for column in series(table, f"{name}/stderr")), strict=True))
        is_finite = np.isfinite(values)
        steps, values = steps[is_finite], values[is_finite]
        if not len(values):
            continue
        shown = [
            _text(name, value, errors.get(step)) for step, value in zip(steps.tolist(), values.tolist(), strict=True)
        ]
        best = int(np.argmax(values))
        rows.append(
            ValidationRow(
                run_id=run_id, name=name.removeprefix(VALIDATION_PREFIX), num=len(values), first=shown[0],
                best=shown[best], best_step=int(steps[best]), last=shown[-1],
            )
        )  # fmt: skip
    return rows


def _text(name: str, value: float, error: float | None) -> str:
    """Accuracies in percent, other scores as they are."""
    if "/acc/" in name:
        return with_error(value, error)
    return number(value) if error is None else f"{number(value)} ± {number(error)}"
