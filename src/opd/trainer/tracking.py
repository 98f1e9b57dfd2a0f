"""Trackers in addition to the run's own metrics: one run in each for all attempts, each step once, files in the run directory."""

import importlib.util
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from opd.errors import MissingPackage
from opd.experiment.run_config import KEY, RunConfig
from opd.runs.run import Run

MLFLOW_RECORD = "mlflow.json"
# "console" is our own line a step, "file" the run's metrics.
_OURS = ("console", "file")
_PACKAGES = ("wandb", "mlflow", "tensorboard")


def check_installed(loggers: Collection[str]) -> None:
    """Raise MissingPackage for a logger without its package now, instead of in the middle of a start that has taken minutes."""
    for name in loggers:
        if name in _PACKAGES and importlib.util.find_spec(name) is None:
            raise MissingPackage(
                f"trainer.loggers: {name} needs the package {name}, which is not installed. Install it into this "
                "environment (or image), or remove it from the list. The run keeps its own metrics in any case"
            )


def set_environment(run_id: str, run_dir: str | Path) -> None:
    """Make the run id W&B's too, so that a later attempt continues the same run, and have trackers write files into the run directory."""
    os.environ.setdefault("WANDB_RUN_ID", run_id)
    os.environ.setdefault("WANDB_RESUME", "allow")
    os.environ.setdefault("TENSORBOARD_DIR", str(Path(run_dir) / "tensorboard"))
    os.environ.setdefault("WANDB_DIR", str(run_dir))
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{run_dir}/mlflow.db")
    # W&B's file takes rows every 15 s; no later attempt logs again the rows that a killed attempt had not written by then.
    os.environ.setdefault("WANDB__TRANSACTION_LOG_FLUSH_INTERVAL", "1")


class Trackers:
    """verl's trackers and MLflow, which get each step once over all attempts of the run.

    Args:
        config: verl's, resolved.
        run: whose own metrics are kept in any case.
    """

    def __init__(self, config: DictConfig, run: Run):
        from verl.utils.tracking import Tracking

        asked = [config.trainer.logger] if isinstance(config.trainer.logger, str) else list(config.trainer.logger)
        params: Any = OmegaConf.to_container(config, resolve=True)
        params[KEY] = RunConfig.of(config).tree()
        record = (run.stores[0].get_json(MLFLOW_RECORD) or {}) if "mlflow" in asked else {}
        if record:  # verl's MLflow backend continues the run of this id, and it would log the parameters again
            os.environ.setdefault("MLFLOW_RUN_ID", record["run_id"])
        self._tracking = Tracking(
            project_name=config.trainer.project_name,
            experiment_name=config.trainer.experiment_name,
            default_backend=[name for name in asked if name not in _OURS],
            config=None if record else params,
        )
        self._wandb = self._tracking.logger.get("wandb")
        if "mlflow" in self._tracking.logger:
            import mlflow

            active: Any = mlflow.active_run()
            run.stores[0].put_json(MLFLOW_RECORD, {"run_id": active.info.run_id})
        # A resumed run repeats the steps after its checkpoint. MLflow and TensorBoard would show both, so trackers keep the first
        # attempt's; the run's own metrics take the latest.
        self._logged_until = max((int(row["step"]) for row in run.history()), default=-1)

    @property
    def links(self) -> dict[str, str]:
        """Return the run's address at W&B, by that name; nothing where W&B has no server."""
        url = None if self._wandb is None else self._wandb.run.url
        return {"wandb": str(url)} if url else {}

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Log a step's numbers, unless an earlier attempt did, and write at once: no later attempt logs them again."""
        if step <= self._logged_until:
            return
        numbers = {name: float(value) for name, value in data.items() if isinstance(value, int | float)}
        self._tracking.log(data=numbers, step=step)
        if self._wandb is not None:
            self._wandb.log({}, step=step, commit=True)  # else it keeps a step's row back until the next one begins
        if (tensorboard := self._tracking.logger.get("tensorboard")) is not None:
            tensorboard.writer.flush()  # else every two minutes

    def finish(self, exit_code: int) -> None:
        """Close every tracker."""
        self._tracking.finish(exit_code=exit_code)


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
    """A run's own metrics for Prometheus, set while Ray runs; Ray's exporter on port 8080 puts `ray_` before each name."""

    def __init__(self) -> None:
        from ray.util.metrics import Gauge

        self._gauges = {name: Gauge(name, text) for name, text in GAUGES.items()}

    def __call__(self, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:
                self._gauges[name].set(float(value))
