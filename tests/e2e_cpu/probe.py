"""Loaded into every verl process of a run under test: writes down what the rollout answered and what the student read.

`VERL_USE_EXTERNAL_MODULES` names this module; it runs when verl has just been imported, before the trainer's own modules
are, so it waits for them. Nothing is changed: the wrapped functions do what they did.
"""

import json
import os
from pathlib import Path

from tests.after_import import change_after_import

FOLDER = "OPD_PROBE_FOLDER"


def _write(kind: str, record: dict) -> None:
    with (Path(os.environ[FOLDER]) / f"{kind}.{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def _watch_rollout(module) -> None:
    original = module.RolloutWorker._trajectory

    async def trajectory(self, batch, place, sample):
        row = await original(self, batch, place, sample)
        if batch.partition == "train" and not batch.is_recorded and row is not None:
            names = ("prompts", "responses", "response_mask")
            _write("rollout", {name: row.columns[name].tolist() for name in names} | {"step": batch.step})
        return row

    module.RolloutWorker._trajectory = trajectory


def _watch_student(module) -> None:
    from opd.update.head import LossTask

    original = module.run_with_task

    def run_with_task(model, head, task, **inputs):
        if isinstance(task, LossTask) and task.weights.divergence is not None:
            record = {name: inputs[name].tolist() for name in ("input_ids", "position_ids")}
            record |= {name: getattr(task, name).tolist() for name in ("positions", "token_ids")}
            record["token_weights"] = task.weights.divergence.tolist()
            mask = inputs.get("attention_mask")
            _write("student", record | {"attention_mask": None if mask is None else mask.tolist()})
        return original(model, head, task, **inputs)

    module.run_with_task = run_with_task


if FOLDER in os.environ:
    change_after_import({"opd.rollout.worker": _watch_rollout, "opd.update.head_engine": _watch_student})
