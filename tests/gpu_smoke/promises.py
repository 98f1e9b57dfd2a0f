"""What a run on a GPU must have kept, read from its metrics alone, and where its steps' time went."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

Row = dict[str, Any]
PEARSON = "training/rollout_actor_probs_pearson_corr"
MIN_PEARSON = {"opd": 0.999, "toy": 0.98, "grpo": 0.98}
"""By run. The toy nets are 64 wide with logits of 10 to 20, which bf16 rounds by up to 1/16: there the two forwards,
vLLM's and the trainer's, differ by that much."""
MAX_DIVERGENCE_RATIO = 0.9
NUM_ENDS = 3
"""Steps averaged at each end of the curve: one step's batch alone is noise."""

# (label, metric) of the parts of an OPD step; what is left of the step's time is "rest".
PARTS = (
    ("rollout", "timing_s/gen"),
    ("teacher", "timing/teacher_s"),
    ("student", "timing/student_s"),
    ("weight sync", "timing_s/update_weights"),
    ("reference", "timing_s/ref"),
    ("update", "timing_s/update_actor"),
    ("old log-probs", "timing_s/old_log_prob"),
)


class Promise(NamedTuple):
    name: str
    observed: str
    kept: bool


def training_rows(rows: list[Row]) -> list[Row]:
    return [row for row in rows if "training/global_step" in row]


def promises(name: str, kind: str, rows: list[Row], *, num_steps: int) -> Iterator[Promise]:
    """Each promise of one run with what was observed."""
    steps = training_rows(rows)
    yield Promise(f"{num_steps} steps", f"{len(steps)} steps", len(steps) == num_steps)
    lost = sum(row["rollout/failed"] + row["reward/failed"] for row in steps)
    yield Promise("no rollout or reward failed", f"{lost:.0f} failed", lost == 0)
    worst = min(row.get(PEARSON, math.nan) for row in steps)
    least = MIN_PEARSON[name]
    yield Promise(f"rollout-vs-actor Pearson >= {least}", f"{worst:.6f} at worst", worst >= least)
    if kind == "grpo":
        norms = [row["actor/grad_norm"] for row in steps]
        yield Promise("every gradient finite", f"norms to {max(norms):.3g}", all(map(math.isfinite, norms)))
        return
    skipped = sum(row["opd/skipped_step"] + row["opd/nonfinite_tokens"] for row in steps)
    yield Promise("no step skipped, no token non-finite", f"{skipped:.0f}", skipped == 0)
    curve = [row["opd/divergence"] for row in steps]
    first, last = (statistics.mean(part) for part in (curve[:NUM_ENDS], curve[-NUM_ENDS:]))
    yield Promise(
        f"divergence falls below {MAX_DIVERGENCE_RATIO} of its start",
        f"{first:.4f} -> {last:.4f}",
        last < MAX_DIVERGENCE_RATIO * first,
    )
    accuracy = [value for row in rows for key, value in row.items() if key.startswith("val-core/") and "/acc/" in key]
    if len(accuracy) > 1:
        yield Promise("held-out accuracy rises", f"{accuracy[0]:.3f} -> {accuracy[-1]:.3f}", accuracy[-1] > accuracy[0])


def step_parts(rows: list[Row]) -> dict[str, float]:
    """Median seconds of each part of a step, after the first two (they compile, capture and allocate)."""
    steps = training_rows(rows)[2:]
    parts = {
        label: statistics.median(row[name] for row in steps)
        for label, name in PARTS
        if all(name in row for row in steps)
    }
    if "student" in parts:
        parts.pop("update", None)  # teacher and student are its parts
    whole = statistics.median(row["timing/step_s"] if "timing/step_s" in row else row["timing_s/step"] for row in steps)
    return {**parts, "rest": whole - sum(parts.values()), "step": whole}
