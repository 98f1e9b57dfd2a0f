"""One attempt at a run that logs to W&B, MLflow and TensorBoard, as a program: `FOLDER ATTEMPT`."""

import os
import signal
import sys
import time
from pathlib import Path

from tests.trainer.wandb_file import read_wandb_file

RUN_ID, PROJECT = "tracked", "trackers"
ODD_METRIC = "val-core/math, 500/acc/mean@1"
# The first attempt dies after step 6, saved last at 4: the second validates that model, then repeats 5 and 6.
STEPS = {1: range(7), 2: range(4, 9)}


def main(folder: Path, attempt: int) -> None:
    from omegaconf import OmegaConf

    from opd.experiment import parse_tree
    from opd.experiment.run_config import KEY, RunConfig, RunFacts
    from opd.runs.run import Run
    from opd.trainer import tracking
    from opd.trainer.run_log import StepLogger

    with Run.open(run_id=RUN_ID, local_root=folder / "out", spec={"a": 1}, spec_hash="h", tee=False) as run:
        assert run.attempt == attempt
        tracking.set_environment(RUN_ID, run.local.root)
        trainer = {"logger": ["wandb", "tensorboard", "mlflow"], "project_name": PROJECT, "experiment_name": RUN_ID}
        tree = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}}
        ours = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id=RUN_ID, run_dir="out/r"))
        config = {"trainer": trainer, "lr": 0.1, "resumed": attempt > 1, KEY: ours.text()}
        trackers = tracking.Trackers(OmegaConf.create(config), run)
        logger = StepLogger(run, trackers, total_steps=8)
        for step in STEPS[attempt]:
            logger.log({"opd/loss": step / 10, "opd/attempt": float(attempt), ODD_METRIC: 0.5}, step)
        if attempt == 1:
            [offline] = run.local.root.glob("wandb/offline-run-*/*.wandb")
            _wait_for_step(offline, STEPS[1][-1])  # it writes by and by; what it has not written is lost with it
            os.kill(os.getpid(), signal.SIGKILL)
        logger.finish(0)


def _wait_for_step(offline: Path, step: int, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not any(row["_step"] == step for row in read_wandb_file(offline).history):
        assert time.monotonic() < deadline, f"{offline} never held step {step}"
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
