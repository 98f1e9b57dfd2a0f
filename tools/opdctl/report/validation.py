"""The table of validations while training: first, best and last score of each data set, with its standard error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opd.runs.headline import VALIDATION_PREFIX
from opdctl.runs.history import series
from opdctl.runs.tables import number, with_error


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
