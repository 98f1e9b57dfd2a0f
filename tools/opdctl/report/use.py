"""What runs do with their GPUs: pace, memory, and where the time of their newest steps goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from opd.runs.headline import MEMORY_KEYS, THROUGHPUT_KEYS, first_of
from opdctl.redact import one_line
from opdctl.report.step_parts import step_time
from opdctl.runs.layout import Sheet
from opdctl.runs.record import RunRecord
from opdctl.runs.tables import number, progress_text

# Enough for a mean that one slow step does not make, few enough to be of now.
NUM_STEPS = 20
# A part that takes less of every run's step has no column.
LEAST_PERCENT = 0.5


@dataclass(frozen=True, kw_only=True)
class Use:
    """One run; None where its metrics say nothing."""

    run: str
    step: str
    gpus: int | None
    """GPUs that its pods hold now; None where no cluster was asked."""
    step_s: float | None
    """Mean seconds of its newest steps, with the validations between them."""
    parts: dict[str, float]
    """Percent of such a step by part; they add up to 100."""
    tokens_per_gpu_s: float | None
    """Tokens a second and GPU in the newest step."""
    memory_gib: float | None
    """The most that one GPU's tensors took."""
    mfu: float | None
    """Share of the GPUs' peak FLOP/s in training, where the trainer counts it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def use_of(record: RunRecord, metrics: pa.Table, *, gpus: int | None) -> Use:
    """A run's use by its newest steps.

    Args:
        metrics: of the run, one row a step, ascending.
    """
    timed = step_time(metrics.slice(max(metrics.num_rows - NUM_STEPS, 0)))
    return Use(
        run=record.run_id,
        step=progress_text(record),
        gpus=gpus,
        step_s=timed.seconds if timed else None,
        parts={part.name: part.share for part in timed.parts} if timed else {},
        tokens_per_gpu_s=first_of(record.latest, THROUGHPUT_KEYS),
        memory_gib=first_of(record.latest, MEMORY_KEYS),
        mfu=record.latest.get("perf/mfu/actor"),
    )


def use_table(found: Sequence[Use]) -> Sheet:
    """A line a run; parts in the order of the step."""
    known = dict.fromkeys(name for use in found for name, share in use.parts.items() if share >= LEAST_PERCENT)
    parts = sorted(known, key=lambda name: name == "rest")
    names = ["run", "step", "s/step", *(f"{name} %" for name in parts), "tok/s/GPU", "GiB", "GPUs", "MFU %"]
    lines = [
        [
            one_line(use.run),
            use.step,
            number(use.step_s),
            *(f"{use.parts[name]:.0f}" if name in use.parts else "–" for name in parts),
            number(use.tokens_per_gpu_s),
            number(use.memory_gib),
            "–" if use.gpus is None else str(use.gpus),
            "–" if use.mfu is None else f"{100 * use.mfu:.0f}",
        ]
        for use in found
    ]
    return Sheet(names=names, lines=lines)
