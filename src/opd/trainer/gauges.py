"""A run's own metrics for Prometheus, by Ray's exporter on port 8080: Ray puts `ray_` before each name."""

from __future__ import annotations

from ray.util.metrics import Gauge

from opd.runs.reporter import Snapshot

GAUGES = {
    "opd_attempt": "Number of the attempt, from 1: it grows with every start.",
    "opd_step": "Global step, the last one that was logged.",
    "opd_total_steps": "The step that the run ends with.",
    "opd_eta_seconds": "Seconds to the last step at the last step's pace.",
    "opd_step_seconds": "Seconds that the last step took.",
    "opd_tokens_per_second": "Tokens per second and GPU of the last step.",
    "opd_score": "Held-out accuracy of the first validation set, else the rollouts' own.",
    "opd_loss": "Loss of the last step.",
    "opd_progress_time_seconds": "When the driver last made progress, Unix seconds.",
    "opd_progress_limit_seconds": "Without progress for this long the attempt is ended; 0 while it waits for others.",
    "opd_skipped_updates": "Updates that this attempt skipped, since loss or gradient was not finite.",
}


class RunGauges:
    """Sets the metrics from each snapshot, as long as Ray runs: what is set behind its end may end the process."""

    def __init__(self) -> None:
        self._gauges = {name: Gauge(name, text) for name, text in GAUGES.items()}

    def __call__(self, snapshot: Snapshot) -> None:
        """Set what the snapshot knows."""
        values = {
            "opd_attempt": snapshot.attempt,
            "opd_step": snapshot.step,
            "opd_total_steps": snapshot.total_steps,
            "opd_eta_seconds": snapshot.eta_s,
            "opd_step_seconds": snapshot.step_s,
            "opd_tokens_per_second": snapshot.tokens_per_s,
            "opd_score": None if snapshot.score is None else snapshot.score.value,
            "opd_loss": snapshot.loss,
            "opd_progress_time_seconds": snapshot.progress_at_s,
            "opd_progress_limit_seconds": snapshot.limit_s or 0.0,
            "opd_skipped_updates": snapshot.num_skipped,
        }
        for name, value in values.items():
            if value is not None:
                self._gauges[name].set(float(value))
