"""One run in W&B, MLflow and TensorBoard for all attempts of a run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trainer.tracked_attempt import PROJECT, RUN_ID, STEPS
from tests.trainer.wandb_file import read_wandb_file

from opd.errors import MissingPackage
from opd.runs.run import Run
from opd.trainer import tracking

# The first test of the attempts starts both of them.
pytestmark = pytest.mark.timeout(900)


def attempt(folder: Path) -> Run:
    return Run.open(run_id="r", local_root=folder, spec={"a": 1}, spec_hash="h", tee=False)


def test_a_logger_whose_package_is_missing_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackage, match=r"trainer\.loggers: wandb needs the package wandb, which"):
        tracking.check_installed(["console", "wandb"])
    tracking.check_installed(["console", "file"])


ALL_STEPS = list(range(9))
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two_attempts(tmp_path_factory):
    """The folder of a run whose first attempt was killed and whose second repeated two of its steps."""
    folder = tmp_path_factory.mktemp("tracked")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_", "TENSORBOARD"))
    }
    environment = kept | {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "WANDB_MODE": "offline",
    }
    for attempt, ends in ((1, -signal.SIGKILL), (2, 0)):
        program = [sys.executable, "-m", "tests.trainer.tracked_attempt", str(folder), str(attempt)]
        done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == ends, done.stderr[-4000:]
    return folder


def _first_attempt_that_logged(step: int) -> float:
    return 1.0 if step in STEPS[1] else 2.0


@pytest.mark.slow
def test_both_attempts_of_a_killed_run_are_one_wandb_run_with_its_steps_in_order(two_attempts):
    files = sorted(
        (two_attempts / "out" / RUN_ID / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.parent
    )
    read = [read_wandb_file(path) for path in files]
    assert [(found.run_id, found.project) for found in read] == [(RUN_ID, PROJECT)] * 2
    rows = [row for found in read for row in found.history]
    assert [row["_step"] for row in rows] == ALL_STEPS
    assert [row["opd/attempt"] for row in rows] == [_first_attempt_that_logged(step) for step in ALL_STEPS]


@pytest.mark.slow
def test_both_attempts_of_a_killed_run_are_one_run_in_mlflow_with_each_step_once(two_attempts):
    client = pytest.importorskip("mlflow").MlflowClient(f"sqlite:///{two_attempts / 'out' / RUN_ID}/mlflow.db")
    [found] = client.search_runs([client.get_experiment_by_name(PROJECT).experiment_id])
    history = client.get_metric_history(found.info.run_id, "opd/attempt")
    assert [(point.step, point.value) for point in history] == [
        (step, _first_attempt_that_logged(step)) for step in ALL_STEPS
    ]
    assert (found.info.run_name, found.info.status) == (RUN_ID, "FINISHED")
    assert found.data.metrics["opd/loss"] == 0.8
    assert found.data.metrics["val-core/math_ 500/acc/mean_at_1"] == 0.5, "the name of a data set in MLflow's letters"


@pytest.mark.slow
def test_tensorboard_and_wandb_write_into_the_run_directory_and_nowhere_else(two_attempts):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert [path.name for path in two_attempts.iterdir()] == ["out"]
    events = EventAccumulator(str(two_attempts / "out" / RUN_ID / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("opd/loss")] == ALL_STEPS
