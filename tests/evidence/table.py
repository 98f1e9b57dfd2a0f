"""The committed table: every cell's means over seeds, its paired difference to its study's control, and the primary comparisons."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.evidence.cells import BRIDGE, FAMILIES, STUDIES, TEACHER_GRPO, Comparison, control_of, primary, study_cells
from tests.evidence.inference import Difference, holm, paired

ALPHA = 0.05
Count = Callable[[Mapping[str, Any]], float]
_TOKENS: dict[str, Count] = {
    "trained tokens": lambda row: row["trained_tokens"],
    "generated tokens": lambda row: row["generated_tokens"],
}
COUNTED: dict[str, dict[str, Count]] = dict.fromkeys(STUDIES, _TOKENS) | {
    BRIDGE: {
        "updates": lambda row: row["updates"],
        "tokens by the learner": lambda row: row["generated_tokens"] - row["generated_by_teacher"],
        "by its teacher": lambda row: row["generated_by_teacher"],
        "in that one's RL": lambda row: row["teacher_training_tokens"],
    }
}
"""What stands behind a study's measurements, by its heading."""
MEASURED: dict[str, list[tuple[str, str, str]]] = {
    study: [("step 0", control_of(study), "before"), ("teacher", control_of(study), "teacher")] for study in STUDIES
} | {BRIDGE: [("step 0", BRIDGE, "before"), ("raw teacher", TEACHER_GRPO, "before")]}
"""The rows of what was measured only: name, the cell whose results hold it, and where."""
_HEADER = """# Results

Made by `make evidence` from its `results.json`; what the cells are and how they are measured stands in [README.md](README.md).
Scores are the share of right answers in percent to held-out problems, sampled at temperature 1. A difference is a mean over
the same seeds on both sides, ± its standard error, with Student's t interval at 95 %.
"""


def difference(rows: Sequence[Mapping[str, Any]], study: str, cell: str, control: str) -> Difference:
    """Percent of score(cell) - score(control) over the seeds that both have; num is 0 where there are none."""
    sides = [
        {row["seed"]: row["score_after"] for row in rows if (row["study"], row["cell"]) == (study, name)}
        for name in (cell, control)
    ]
    seeds = sorted(sides[0].keys() & sides[1].keys())
    if not seeds:
        return Difference(0, *(math.nan,) * 5)
    return paired([100.0 * (sides[0][seed] - sides[1][seed]) for seed in seeds])


def verdict(comparison: Comparison, found: Difference, adjusted: float) -> str:
    """What the runs say of the published claim; "not shown" is no evidence of the opposite."""
    if adjusted >= ALPHA:
        return "no difference shown" if comparison.claim == "equal" else "not shown"
    if comparison.claim == "equal":
        return f"CONTRADICTED: {'higher' if found.mean > 0 else 'lower'}"
    return "agrees" if found.mean > 0 else "CONTRADICTED: lower"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The Markdown page of the results."""
    studies = [study for study in STUDIES if any(row["study"] == study for row in rows)]
    families = [family for family, its in FAMILIES.items() if set(its) & set(studies)]
    return "\n".join(
        [
            _HEADER,
            *(line for family in families for line in _primary(rows, family)),
            *(line for study in studies for line in _study(rows, study)),
            *_cost(rows),
        ]
    )


def _primary(rows: Sequence[Mapping[str, Any]], family: str) -> list[str]:
    comparisons = primary(family)
    found = [difference(rows, one.study, one.cell, one.control) for one in comparisons]
    num_missing = sum(one.num < 2 for one in found)
    # A comparison that has not run yet counts with p = 1, so that the others pay for all that were planned.
    adjusted = holm([one.p if one.num > 1 else 1.0 for one in found])
    lines = [
        "## Primary comparisons" + (f" of the {family}" if family == BRIDGE else "") + "\n",
        f"Fixed before the first run ([primary.yaml](primary.yaml)); p after Holm's correction for all {len(found)}.",
    ]
    if num_missing:
        lines.append(f"{num_missing} of them have not run yet.")
    lines += [
        "",
        "| comparison | seeds | difference | 95 % | p | p (Holm) | claim | found |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    told = []
    for comparison, one, p in zip(comparisons, found, adjusted, strict=True):
        says = verdict(comparison, one, p) if one.num > 1 else "not run"
        if says.startswith("CONTRADICTED"):
            told.append(
                f"**Contradicts a paper:** {comparison.source}; here {comparison.cell} - {comparison.control} is {_with_error(one)} points."
            )
        lines.append(
            f"| {comparison.study}: {comparison.cell} - {comparison.control} | {one.num} | {_with_error(one)} | {_interval(one)} | "
            f"{one.p:.2g} | {p:.2g} | {comparison.source} | {says} |"
        )
    return [*lines, "", *(line for text in told for line in (text, ""))]


def _study(rows: Sequence[Mapping[str, Any]], study: str) -> list[str]:
    here = [row for row in rows if row["study"] == study]
    num_answers = min(
        len(measured["pass_at_k"]) for row in here for measured in (row["before"], row["after"], row["teacher"])
    )
    ks = [k for k in (1, 2, 4, 8) if k <= num_answers]
    counted, control = COUNTED[study], control_of(study)
    lines = [
        f"## {study}\n",
        f"| cell | seeds | score | - {control} | 95 % | {' | '.join(f'pass@{k}' for k in ks)} | tokens an answer | nats a token | {' | '.join(counted)} |",
        "|---|" + "---:|" * (6 + len(ks) + len(counted)),
    ]
    blank = (None,) * len(counted)
    for name, cell, key in MEASURED[study]:
        if measured := [row[key] for row in here if row["cell"] == cell]:
            lines.append(_measured_row(name, measured, ks, None, blank))
    for cell in study_cells(study):
        runs = [row for row in here if row["cell"] == cell.name]
        if not runs:
            continue
        against = difference(rows, study, cell.name, control) if cell.name != control else None
        counts = [statistics.fmean(count(row) for row in runs) for count in counted.values()]
        lines.append(_measured_row(cell.name, [row["after"] for row in runs], ks, against, counts))
    return [*lines, ""]


def _measured_row(
    name: str,
    measured: Sequence[Mapping[str, Any]],
    ks: Sequence[int],
    against: Difference | None,
    counts: Sequence[float | None],
) -> str:
    score = paired([100.0 * one["score"] for one in measured])
    means = [f"{100.0 * statistics.fmean(one['pass_at_k'][k - 1] for one in measured):.1f}" for k in ks]
    means += [
        f"{statistics.fmean(one[key] for one in measured):.{digits}f}"
        for key, digits in (("response_length", 1), ("entropy", 3))
    ]
    cells = [name, str(len(measured)), _with_error(score), _with_error(against), _interval(against)]
    counted = ["" if count is None else f"{count:,.0f}" for count in counts]
    return f"| {' | '.join([*cells, *means, *counted])} |"


def _with_error(one: Difference | None) -> str:
    if one is None or not one.num:
        return ""
    return f"{one.mean:.1f}" if math.isnan(one.standard_error) else f"{one.mean:.1f} ± {one.standard_error:.1f}"


def _interval(one: Difference | None) -> str:
    return "" if one is None or one.num < 2 else f"{one.low:.1f} … {one.high:.1f}"


def _cost(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    runs = {(row["cell"], row["seed"]): row for row in rows}.values()
    devices = ", ".join(sorted({row["device"] for row in runs}))
    return [
        f"{len(runs)} runs on {devices}: {sum(row['seconds'] for row in runs) / 3600:.1f} hours one after another.",
        "",
    ]
