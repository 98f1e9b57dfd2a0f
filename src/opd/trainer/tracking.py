"""Trackers beside the run's own metrics: one run in each for all attempts, each step once, files in the run directory."""

from __future__ import annotations

import configparser
import contextlib
import importlib.util
import logging
import netrc
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from opd.errors import MissingPackage
from opd.experiment.errors import Problem, SpecError
from opd.experiment.run_config import KEY, RunConfig
from opd.redaction import redact
from opd.runs.identity import SPEC_FILE
from opd.runs.run import Run

logger = logging.getLogger(__name__)

MLFLOW_RECORD = "mlflow.json"
_MAX_WANDB_TAG_CHARS = 64  # W&B refuses a run with a longer one
_WANDB_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")  # one service under two names
_WANDB_MODES_WITHOUT_KEY = ("offline", "disabled", "dryrun")
# "console" is our own line a step, "file" the run's metrics; MLflow's run is the same in all attempts.
_OURS = ("console", "file", "mlflow")
_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow", "tensorboard": "tensorboard"}


def check_installed(loggers: Collection[str]) -> None:
    """Refuse what a logger lacks now instead of in the middle of a start that has taken minutes.

    Raises:
        MissingPackage: its package. SpecError: W&B's key.
    """
    for name in loggers:
        package = _PACKAGES.get(name)
        if package is not None and importlib.util.find_spec(package) is None:
            raise MissingPackage(
                f"trainer.loggers: {name} needs the package {package}, which is not installed: install it into this "
                "environment (or image), or remove it from the list; the run keeps its own metrics in any case"
            )
    if "wandb" in loggers and not _has_wandb_key():
        problem = Problem(
            path="trainer.loggers",
            value=list(loggers),
            rule="wandb needs an API key, and neither WANDB_API_KEY nor a netrc entry of its host has one",
            fix="set WANDB_API_KEY (in a cluster: cluster.secrets.wandb), run `wandb login`, set WANDB_MODE=offline, or "
            "remove it from the list; the run keeps its own metrics in any case",
        )
        raise SpecError([problem])


def _has_wandb_key() -> bool:
    """Whether W&B would start without asking; it is not asked, for it keeps the environment that it first sees."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = configparser.ConfigParser(interpolation=None, strict=False)
    folder = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    with contextlib.suppress(configparser.Error, ValueError):
        settings.read([folder / "settings", "wandb/settings"])  # as `wandb offline` and `wandb login --host` write them
    said = dict(settings["default"]) if settings.has_section("default") else {}
    if (os.environ.get("WANDB_MODE") or said.get("mode", "")) in _WANDB_MODES_WITHOUT_KEY or said.get("api_key"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or said.get("base_url", "")).netloc
    try:
        entries = netrc.netrc(Path(os.environ.get("NETRC") or "~/.netrc").expanduser())
    except (OSError, ValueError, netrc.NetrcParseError):
        return False
    return any(entries.authenticators(name) for name in (_WANDB_HOSTS if host in ("", *_WANDB_HOSTS) else (host,)))


def set_wandb_environment(run_id: str, *, tags: Sequence[str] = ()) -> None:
    """The run id is W&B's too, so that a later attempt writes on in the same W&B run (verl would start another).

    Args:
        tags: what W&B may group runs by, such as the model's name.
    """
    os.environ.setdefault("WANDB_RUN_ID", run_id)
    os.environ.setdefault("WANDB_RESUME", "allow")
    if tags:
        os.environ.setdefault("WANDB_TAGS", ",".join(tag.replace(",", " ")[:_MAX_WANDB_TAG_CHARS] for tag in tags))


def write_into(run_dir: str | Path) -> None:
    """Have what trackers write on this machine lie in the run directory, not below wherever the run was started."""
    os.environ.setdefault("TENSORBOARD_DIR", str(Path(run_dir) / "tensorboard"))
    os.environ.setdefault("WANDB_DIR", str(run_dir))
    # W&B's file takes rows every 15 s: what a killed attempt had not written by then no later one logs again.
    os.environ.setdefault("WANDB__TRANSACTION_LOG_FLUSH_INTERVAL", "1")


def last_logged_step(run: Run) -> int:
    """The last step of which an earlier attempt logged anything, -1 for none.

    A resumed run repeats the steps after its checkpoint. MLflow and TensorBoard would show both, so they keep the first
    attempt's; the run's own metrics take the latest.
    """
    return max((int(row["step"]) for row in run.history()), default=-1)


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
        self._tracking = Tracking(
            project_name=config.trainer.project_name,
            experiment_name=config.trainer.experiment_name,
            default_backend=[name for name in asked if name not in _OURS],
            config=dict(params),
        )
        params[KEY] = RunConfig.of(config).tree()
        self._wandb = self._tracking.logger.get("wandb")
        if self._wandb is not None:  # verl gave it our part as one text
            self._wandb.config.update({KEY: params[KEY]}, allow_val_change=True)
        self._mlflow = MlflowRun(run, project=config.trainer.project_name, params=params) if "mlflow" in asked else None
        self._logged_until = last_logged_step(run)

    @property
    def links(self) -> dict[str, str]:
        """Addresses of this run for a browser, by tracker that has a server, without credentials."""
        wandb = (self._wandb.run.url if self._wandb is not None else None) or ""
        found = {"wandb": str(wandb), "mlflow": self._mlflow.url if self._mlflow is not None else ""}
        return {
            name: without_credentials(url) for name, url in found.items() if url.startswith(("http://", "https://"))
        }

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Log a step; one that an earlier attempt logged only to a tracker that knows which steps it has.

        That is W&B with its server: it drops what it has and takes what a killed attempt had not sent yet. The others
        must write at once, since a later attempt logs none of these steps again.
        """
        is_repeated = step <= self._logged_until
        takes_repeated = self._wandb is not None and not self._wandb.run.offline
        if not is_repeated:
            self._tracking.log(data=data, step=step)
        elif takes_repeated:
            self._tracking.log(data=data, step=step, backend=["wandb"])
        if self._wandb is not None and (takes_repeated or not is_repeated):
            self._wandb.log({}, step=step, commit=True)  # else it keeps a step's row back until the next one begins
        if (tensorboard := self._tracking.logger.get("tensorboard")) is not None:
            tensorboard.writer.flush()  # else every two minutes
        if self._mlflow is not None and not is_repeated:
            self._mlflow.log(data, step)

    def finish(self, exit_code: int) -> None:
        """Close every tracker."""
        self._tracking.finish(exit_code=exit_code)
        if self._mlflow is not None:
            self._mlflow.finish(exit_code)


def without_credentials(url: str) -> str:
    """`http://user:password@host/path` without the user and the password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class MlflowRun:
    """verl's MLflow backend, but for the run id: the first attempt stores it, later ones go on in that run.

    verl 0.9.1 starts a new run in each attempt; told an id (MLFLOW_RUN_ID, which wins here too), it logs the parameters
    again, which MLflow refuses as soon as one differs, and then goes on without MLflow.
    """

    def __init__(self, run: Run, *, project: str, params: Mapping[str, Any]):
        import mlflow
        from mlflow.exceptions import MlflowException
        from verl.utils.tracking import _MlflowLoggingAdapter

        self._adapter: Any = None
        self.url = ""
        """In MLflow's web interface, where its server has one; empty without a server that knows this run."""
        mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.handle.local_dir}/mlflow.db")
        try:
            info = self._start(mlflow, run, project, params)
        except MlflowException as error:
            logger.warning("continuing without MLflow (%s): %s", redact(mlflow.get_tracking_uri()), redact(str(error)))
        else:
            self._adapter = _MlflowLoggingAdapter()
            server = redact(mlflow.get_tracking_uri()).rstrip("/")
            self.url = f"{server}/#/experiments/{info.experiment_id}/runs/{info.run_id}"

    @staticmethod
    def _start(mlflow: Any, run: Run, project: str, params: Mapping[str, Any]) -> Any:
        """MLflow's facts of the run, which goes on or is new."""
        from verl.utils.tracking import _compute_mlflow_params_from_objects

        record = run.stores[0].get_json(MLFLOW_RECORD) or {}
        run_id = os.environ.get("MLFLOW_RUN_ID") or record.get("run_id")
        if run_id:
            return mlflow.start_run(run_id=run_id).info
        experiment = mlflow.set_experiment(project)
        spec = run.stores[0].get_json(SPEC_FILE) or {}
        tags = {"kind": spec.get("kind"), "model": spec.get("model", {}).get("name")}
        active = mlflow.start_run(
            experiment_id=experiment.experiment_id,
            run_name=run.handle.run_id,
            tags={name: value for name, value in tags.items() if value},
        )
        run.stores[0].put_json(MLFLOW_RECORD, {"run_id": active.info.run_id, "experiment": project})
        mlflow.log_params(_compute_mlflow_params_from_objects(params))
        return active.info

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Log what is a number; MLflow takes nothing else."""
        if self._adapter is not None:
            numbers = {name: float(value) for name, value in data.items() if isinstance(value, int | float)}
            self._adapter.log(numbers, step)

    def finish(self, exit_code: int) -> None:
        import mlflow

        if self._adapter is not None:
            mlflow.end_run("FINISHED" if exit_code == 0 else "FAILED")


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
    """A run's own metrics for Prometheus, set with each beat while Ray runs: what is set after its end may end the process.

    Ray's exporter on port 8080 puts `ray_` before each name.
    """

    def __init__(self) -> None:
        from ray.util.metrics import Gauge

        self._gauges = {name: Gauge(name, text) for name, text in GAUGES.items()}

    def __call__(self, values: Mapping[str, float | None]) -> None:
        """Set the known values."""
        for name, value in values.items():
            if value is not None:
                self._gauges[name].set(float(value))
