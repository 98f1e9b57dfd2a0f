"""Kind `eval`: validation only; every answer kept, scored and turned into tables with standard errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.console import Console

from opd.evaluation.report import result_table, save_picture
from opd.evaluation.results import SetResult, as_metrics, evaluate
from opd.evaluation.samples import Sample, write_generations
from opd.training.trainer import OrderedTrainer

GENERATIONS_FILE = "generations.parquet"
PICTURE_FILE = "pass_at_k.png"
FOLDER = "eval"


class EvalTrainer(OrderedTrainer):
    """Answers every validation prompt `n` times with a fixed model; verl's own aggregates give way to ours."""

    results: list[SetResult]

    def _validate(self) -> dict[str, float]:
        super()._validate()
        samples = self.last_report.samples
        asked: dict[str, list[int]] = {}
        for row in self.val_dataset.dataframe.select_columns(["data_source", "extra_info"]):
            asked.setdefault(row["data_source"], []).append(int(row["extra_info"]["index"]))
        n = int(self.config.actor_rollout_ref.rollout.val_kwargs.n)
        self.results = evaluate(samples, num_samples=n, problems=asked)
        self._keep(samples)
        Console(width=110).print(result_table(self.results))
        return as_metrics(self.results) | {
            "val-aux/rollout/failed": float(self.last_report.num_failed),
            **{f"val-aux/{name}": value for name, value in self.last_report.agent.metrics().items()},
        }

    def _keep(self, samples: list[Sample]) -> None:
        """Generations and picture in the run directory, and in its store."""
        if self.run is None:
            return
        folder = Path(self.run.handle.local_dir) / FOLDER
        files = [PICTURE_FILE]
        folder.mkdir(parents=True, exist_ok=True)
        if self.config.run.get("save_generations", True):
            write_generations(folder / GENERATIONS_FILE, samples)
            files.append(GENERATIONS_FILE)
        save_picture(folder / PICTURE_FILE, self.results, title=self.run.handle.run_id)
        if self.run.remote is not None:
            for name in files:
                self.run.remote.put_file(f"{FOLDER}/{name}", folder / name)

    def outcome(self) -> dict[str, Any]:
        """What `result.json` holds of an evaluation."""
        return {
            "eval": {
                r.data_source: {
                    "num_problems": r.num_problems,
                    "num_samples": r.num_samples,
                    "mean": r.mean.value,
                    "standard_error": None if math.isnan(r.mean.standard_error) else r.mean.standard_error,
                    "pass_at": [e.value for e in r.pass_at],
                    "maj_at": [e.value for e in r.majority_at],
                }
                for r in self.results
            }
        }
