"""The record of a step: verl's trackers, the run directory's metrics, and one readable line."""

import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from opd.runs import headline
from opd.runs.run import Run
from opd.trainer.tracking import Trackers

Watch = Callable[[int, Mapping[str, Any]], tuple[dict[str, float], list[str]]]
"""(step, row) -> further metrics of the row, and lines about it."""

# (label, metric names of which the first present is shown, format)
_LINE = (
    ("loss", headline.LOSS_KEYS, "{:.4f}"),
    ("entropy", headline.ENTROPY_KEYS, "{:.3f}"),
    ("grad", headline.GRAD_NORM_KEYS, "{:.3f}"),
    ("age", ("rollout/age_mean",), "{:.2f}"),
    ("tok/s", headline.THROUGHPUT_KEYS, "{:.0f}"),
    ("s", headline.STEP_SECONDS_KEYS, "{:.2f}"),
)
_OF_POLICY = {"opd/policy_loss", "actor/pg_loss"}  # 0 on the policy's own answers, and its gradient is not
_PROBLEMS = ("rollout/failed", "reward/failed", "opd/skipped", "actor/skipped")


class StepLogger:
    """The record of each step: trackers, the run directory and one readable line.

    Args:
        run: whose metrics are written. trackers: get the same.
        total_steps: that the run ends with.
        watch: names faults. None means that nothing looks for them.
    """

    def __init__(self, run: Run, trackers: Trackers, *, total_steps: int, watch: Watch | None = None):
        self._run, self._trackers, self._total_steps = run, trackers, total_steps
        self._first: tuple[int, float] | None = None  # step and time
        self._watch = watch

    def log(self, data: dict[str, Any], step: int) -> None:
        """Record the metrics of a step."""
        faults: list[str] = []
        if self._watch is not None:
            found, faults = self._watch(step, data)
            data = data | found
        self._run.log(step, data)
        self._trackers.log(data, step)
        for line in [*self._lines(data, step), *(f"opd.monitor: {fault}" for fault in faults)]:
            print(line, flush=True)

    def _lines(self, data: dict[str, Any], step: int) -> list[str]:
        lines = [self._step_line(data, step)] if "training/global_step" in data else []
        if scores := headline.validation_scores(data):
            shown = "  ".join(f"{source} {score:.3f}" for source, score in sorted(scores.items()))
            lines.append(f"validation at step {step}/{self._total_steps}  {shown}")
        return lines

    def _step_line(self, data: dict[str, Any], step: int) -> str:
        now, total = time.monotonic(), self._total_steps
        if self._first is None:
            self._first = (step, now)
            step_s = float(headline.first_of(data, headline.STEP_SECONDS_KEYS) or 0.0)
        else:
            step_s = (now - self._first[1]) / (step - self._first[0])
        cells = [f"step {step:>{len(str(total))}}/{total}"]
        for label, names, form in _LINE:
            value = headline.first_of(data, names)
            text = form.format(float(value)) if value is not None else ""
            if text and not (label == "loss" and float(text) == 0 and _OF_POLICY & data.keys()):
                cells.append(f"{label} {text}")
            if label == "loss" and (score := headline.rollout_score(data)) is not None:
                cells.append(f"{'acc' if score.is_share else 'score'} {score.value:.3f}")
        cells += [f"{name}={data[name]:.0f}!" for name in _PROBLEMS if data.get(name)]
        return "  ".join([*cells, f"eta {timedelta(seconds=round(step_s * (total - step)))}"])

    def finish(self, exit_code: int) -> None:
        """Close the trackers; 0 means that the run is done."""
        self._trackers.finish(exit_code=exit_code)
        sys.stdout.flush()
