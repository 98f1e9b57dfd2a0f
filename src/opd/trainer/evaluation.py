"""Kind `eval`: validation only; every answer kept, scored and turned into tables with standard errors."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from opd.config import EvalSpec
from opd.errors import StoreError
from opd.evaluation.estimators import Estimate
from opd.evaluation.problems import Problem
from opd.evaluation.report import result_table, save_picture
from opd.evaluation.results import SetResult, as_metrics, evaluate
from opd.evaluation.samples import Sample, write_generations
from opd.rewards import worst_score
from opd.rollout.reward_function import reward_function
from opd.rollout.worker import RolloutReport
from opd.trainer.trainer import OrderedTrainer

logger = logging.getLogger(__name__)

GENERATIONS_FILE = "generations.parquet"
PICTURE_FILE = "pass_at_k.png"
FOLDER = "eval"


class EvalTrainer(OrderedTrainer):
    """Answers every validation prompt `n` times with a fixed model; verl's own aggregates give way to ours."""

    results: list[SetResult]

    def _init_dataloader(self):
        """Name every problem, before any worker starts."""
        super()._init_dataloader()
        problems = self.val_dataset.name_problems()
        self._problems = [problems[place] for place in self.val_dataset.places]
        self._num_dropped = Counter(problems[place].data_source for place in self.val_dataset.dropped_places)
        unasked = self._num_dropped.keys() - {problem.data_source for problem in self._problems}
        if unasked:
            raise ValueError(
                f"no prompt of {', '.join(sorted(unasked))} fits data.max_prompt_length="
                f"{self.config.data.max_prompt_length} tokens: raise the limit, or leave the data set out"
            )

    def fit(self, agent_loop_manager):
        self._samples: list[Sample] = []
        self._not_uploaded: set[str] = set()
        agent_loop_manager.on_report = self._keep_answers
        super().fit(agent_loop_manager)
        if self.run is not None:
            folder = Path(self.run.handle.local_dir) / FOLDER
            save_picture(folder / PICTURE_FILE, self.results, title=self.run.handle.run_id)
            with self.run.storing_the_end():
                for name in (PICTURE_FILE, *self._not_uploaded):
                    self._upload(name)

    def _keep_answers(self, report: RolloutReport) -> None:
        """Every answer so far into the run directory and its store, as soon as it was given."""
        self._samples += [_of_problem(sample, self._problems[sample.problem_index]) for sample in report.samples]
        spec = self.ours.spec
        if self.run is None or not self._samples or not (isinstance(spec, EvalSpec) and spec.eval.save_generations):
            return
        write_generations(Path(self.run.handle.local_dir) / FOLDER / GENERATIONS_FILE, self._samples)
        try:
            self._upload(GENERATIONS_FILE)
        except StoreError as error:
            logger.warning("the generations are on the disk only, the store is tried again at the end: %s", error)
            self._not_uploaded.add(GENERATIONS_FILE)

    def _upload(self, name: str) -> None:
        if self.run is not None and self.run.remote is not None:
            key = f"{FOLDER}/{name}"
            self.run.remote.put_file(key, Path(self.run.handle.local_dir) / key)

    def _val_metrics_update(self, *args, **kwargs) -> dict[str, float]:
        """verl's place for the metrics of a validation: ours, of the answers themselves."""
        asked: dict[str, list[int]] = {}
        for problem in self._problems:
            asked.setdefault(problem.data_source, []).append(problem.problem_index)
        self.results = evaluate(
            self._samples,
            num_samples=int(self.config.actor_rollout_ref.rollout.val_kwargs.n),
            problems=asked,
            num_dropped=self._num_dropped,
            worst_reward=min([worst_score(reward_function(self.config)), *(sample.score for sample in self._samples)]),
        )
        Console(width=110).print(result_table(self.results))
        return as_metrics(self.results)

    def outcome(self) -> dict[str, Any]:
        """What `result.json` holds of an evaluation."""
        return {"eval": {result.data_source: _record(result) for result in self.results}}


def _of_problem(sample: Sample, problem: Problem) -> Sample:
    return replace(sample, data_source=problem.data_source, problem_index=problem.problem_index)


def _record(result: SetResult) -> dict[str, Any]:
    def error(estimate: Estimate) -> float | None:
        return None if math.isnan(estimate.standard_error) else estimate.standard_error

    accuracy, reward = result.accuracy, result.reward
    return {
        "num_problems": result.num_problems,
        "num_samples": result.num_samples,
        "mean": result.mean.value,
        "standard_error": error(result.mean),
        "num_dropped": result.num_dropped,
        "mean_of_all": result.mean_of_all.value,
        "standard_error_of_all": error(result.mean_of_all),
        "std": accuracy.std.value,
        "pass_at": [e.value for e in result.pass_at],
        "maj_at": [e.value for e in accuracy.majority_at],
        "best_at": [e.value for e in accuracy.best_at],
        "worst_at": [e.value for e in accuracy.worst_at],
        "reward": {
            "mean": reward.mean.value,
            "standard_error": error(reward.mean),
            "std": reward.std.value,
            "best_at": [e.value for e in reward.best_at],
            "worst_at": [e.value for e in reward.worst_at],
        },
    }
