"""Tables over a run's steps: the parts of a step's time, and validations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from opd.runs.headline import STEP_SECONDS_KEYS, VALIDATION_PREFIX
from opdctl.runs.gather import GatheredRun
from opdctl.runs.metrics import series
from opdctl.runs.record import is_validation
from opdctl.runs.tables import Sheet, number, plain_with_error, with_error

UPDATE = "timing_s/update_actor"
# Parts that are measured within the update.
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
# Smaller parts are in the rest.
MIN_SHARE = 0.002


def step_time(table: pa.Table) -> dict[str, float]:
    """Return the mean seconds of a step's parts, `rest` last; empty without a measured step.

    A part that some steps lack, such as a checkpoint, counts as 0 there.
    """
    steps = next((both[1] for name in STEP_SECONDS_KEYS if len((both := series(table, name))[1])), np.empty(0))
    total = _sum(steps)
    if total <= 0:
        return {}
    found = {name: _sum(series(table, metric)[1]) for name, metric in OTHERS.items()}
    # The step's clock includes neither validations nor the measuring of pass rates.
    total += found["validation"] + found["pass rates"]
    within = {name: _sum(series(table, metric)[1]) for name, metric in WITHIN_UPDATE.items()}
    update = _sum(series(table, UPDATE)[1]) - sum(within.values())
    first = {"rollout": found.pop("rollout")} | within | {"other update" if any(within.values()) else "update": update}
    parts = {name: seconds for name, seconds in (first | found).items() if seconds > MIN_SHARE * total}
    parts["rest"] = max(total - sum(parts.values()), 0.0)
    return {name: seconds / len(steps) for name, seconds in parts.items()}


def _sum(values: np.ndarray) -> float:
    return float(values[np.isfinite(values) & (np.abs(values) < 1e12)].sum())


def time_table(runs: Sequence[GatheredRun]) -> Sheet | None:
    """Return one row a run: the mean step in seconds, and its parts."""
    times = {run.record.run_id: found for run in runs if (found := step_time(run.metrics()))}
    parts = [name for name in dict.fromkeys(name for found in times.values() for name in found) if name != "rest"]
    lines = [
        (run_id, number(sum(found.values())), *(number(found.get(name)) for name in (*parts, "rest")))
        for run_id, found in times.items()
    ]
    caption = "Mean seconds over all logged steps, with the validations between them."
    return Sheet(names=("run", "mean step", *parts, "rest"), lines=lines, caption=caption) if lines else None


def validation_table(runs: Sequence[GatheredRun]) -> Sheet | None:
    """Return one row for each core score of a run's validations: first, best and last value."""
    lines = []
    for run in runs:
        table = run.metrics()
        for name in sorted(filter(is_validation, table.column_names)):
            steps, values = series(table, name)
            errors = dict(zip(*(column.tolist() for column in series(table, f"{name}/stderr")), strict=True))
            show = with_error if "/acc/" in name else plain_with_error
            found = [
                (step, value) for step, value in zip(steps.tolist(), values.tolist(), strict=True) if np.isfinite(value)
            ]
            if found:
                best = max(found, key=lambda item: item[1])
                cells = [show(value, errors.get(step)) for step, value in (found[0], best, found[-1])]
                lines.append(
                    (run.record.run_id, name.removeprefix(VALIDATION_PREFIX), str(len(found)), *cells, str(best[0]))
                )
    names = ("run", "data set and score", "validations", "first", "best", "last", "step of the best")
    caption = "± standard error, clustered by problem, where the run logged one; accuracies in percent."
    return Sheet(names=names, lines=lines, caption=caption) if lines else None
