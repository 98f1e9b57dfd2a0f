"""Kinds `eval` and `passrate`: validation only; every answer scored, kept, and turned into tables and pass rates."""

from __future__ import annotations

import logging
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils.data import Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from opd.config import EvalSpec
from opd.errors import StoreError
from opd.evaluation.estimators import Estimate
from opd.evaluation.pass_rates import PASS_RATES_KEY, PassRate, write_pass_rates
from opd.evaluation.problems import Problem
from opd.evaluation.report import result_table
from opd.evaluation.results import SetResult, as_metrics, evaluate, is_right
from opd.evaluation.samples import GENERATIONS_KEY, Sample, read_generations, write_generations
from opd.rewards import worst_score
from opd.rollout.manager import RolloutManager
from opd.rollout.reward_function import reward_function
from opd.rollout.worker import RolloutReport
from opd.runs.progress import PROGRESS
from opd.runs.run import EXIT_TERMINATED
from opd.store.base import Store
from opd.trainer.trainer import OrderedTrainer

logger = logging.getLogger(__name__)

FOLDER, _, PASS_RATES_FILE = PASS_RATES_KEY.partition("/")
GENERATIONS_FILE = GENERATIONS_KEY.removeprefix(f"{FOLDER}/")


class EvalTrainer(OrderedTrainer):
    """Answers every validation prompt `n` times with a fixed model; verl's own aggregates give way to ours.

    What an earlier attempt of the run has stored is not asked again.
    """

    results: list[SetResult]
    val_dataloader: StatefulDataLoader  # made by verl

    def _init_dataloader(self) -> None:
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
        self._samples = self._answered_before()
        self._num_to_answer = len(self._problems) * self._num_samples - len(self._samples)
        self._ask_the_others()

    @property
    def _spec(self) -> EvalSpec:
        assert isinstance(self.ours.spec, EvalSpec)  # `TaskRunner` gives this trainer no other kind
        return self.ours.spec

    @property
    def _num_samples(self) -> int:
        return int(self.config.actor_rollout_ref.rollout.val_kwargs.n)

    def _answered_before(self) -> list[Sample]:
        """What earlier attempts have stored of the problems all of whose answers came and were scored."""
        if self.run is None or self.run.handle.attempt == 1:
            return []
        stored = max((_read(store) for store in self.run.stores), key=len)
        good = Counter(_problem_of(sample) for sample in stored if not sample.failed)
        is_whole = {problem for problem in self._problems if good[problem] == self._num_samples}
        return [sample for sample in stored if _problem_of(sample) in is_whole]

    def _ask_the_others(self) -> None:
        """Only problems without stored answers are asked; each keeps its number, and with it the seeds of its answers."""
        if not self._samples:
            return
        answered = {_problem_of(sample) for sample in self._samples}
        rows = [row for row, problem in enumerate(self._problems) if problem not in answered]
        print(f"{len(answered)} of {len(self._problems)} prompts have their answers of an earlier attempt", flush=True)
        loader = self.val_dataloader
        self.val_dataloader = rows and StatefulDataLoader(
            dataset=Subset(self.val_dataset, rows),
            batch_size=loader.batch_size,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
        )

    def fit(self, agent_loop_manager: RolloutManager | None) -> None:
        assert agent_loop_manager is not None  # what is to be answered is
        self._not_uploaded: set[str] = set()
        agent_loop_manager.on_report = self._on_report
        super().fit(agent_loop_manager)
        if self.run is not None:
            folder = Path(self.run.handle.local_dir) / FOLDER
            write_pass_rates(folder / PASS_RATES_FILE, self._pass_rates())
            with self.run.storing_the_end():
                for name in (PASS_RATES_FILE, *self._not_uploaded):
                    self._upload(name)

    def _on_report(self, report: RolloutReport) -> None:
        """Keep a batch's answers; then serve who wants the run, or a pod of it, to end."""
        self._keep_answers(report)
        self._num_to_answer -= report.num_trajectories - report.num_cut
        if report.fault is None:
            self._serve_requests()

    def _serve_requests(self) -> None:
        if not self._num_to_answer:
            return  # only the end is left, which is quick
        if self.run is not None:
            self._serve_pods(self.run)
            PROGRESS.enter("validation", self.global_steps)
        if self._stop.requested:
            if self._save_now() is not None:
                print(f"stored {len(self._samples)} answers; the same command goes on from here", flush=True)
            raise SystemExit(EXIT_TERMINATED)

    def _save_now(self) -> int | None:
        """Every answer is stored as soon as its batch is: the step of the model, which stays, unless the store lacks some."""
        return None if self.run is None or self._not_uploaded else self.global_steps

    def _pass_rates(self) -> list[PassRate]:
        """Of every prompt that was asked, in the order of the data."""
        num_right = Counter(_problem_of(sample) for sample in self._samples if is_right(sample))
        k, checkpoint = self._num_samples, self._spec.eval.checkpoint or self._spec.model.path
        return [
            PassRate(prompt_id=name, pass_rate=num_right[problem] / k, k=k, checkpoint=checkpoint)
            for name, problem in zip(self.val_dataset.prompt_ids(), self._problems, strict=True)
        ]

    def _keep_answers(self, report: RolloutReport) -> None:
        """Every answer so far into the run directory and its store, as soon as it was given."""
        without: dict[str, Any] = {} if self._spec.eval.save_generations else {"prompt": "", "response": ""}
        self._samples += [
            replace(sample, **self._problems[sample.problem_index]._asdict(), **without) for sample in report.samples
        ]
        if self.run is None or not self._samples:
            return
        write_generations(Path(self.run.handle.local_dir) / FOLDER / GENERATIONS_FILE, self._samples)
        try:
            self._upload(GENERATIONS_FILE)
            self._not_uploaded.discard(GENERATIONS_FILE)
        except StoreError as error:
            logger.warning("the generations are on the disk only, the store is tried again at the end: %s", error)
            self._not_uploaded.add(GENERATIONS_FILE)

    def _upload(self, name: str) -> None:
        if self.run is not None and self.run.remote is not None:
            key = f"{FOLDER}/{name}"
            self.run.remote.put_file(key, Path(self.run.handle.local_dir) / key)

    def _val_metrics_update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """verl's place for the metrics of a validation: ours, of the answers themselves."""
        asked: dict[str, list[int]] = {}
        for problem in self._problems:
            asked.setdefault(problem.data_source, []).append(problem.problem_index)
        self.results = evaluate(
            self._samples,
            num_samples=self._num_samples,
            problems=asked,
            num_dropped=self._num_dropped,
            worst_reward=min([worst_score(reward_function(self.config)), *(sample.score for sample in self._samples)]),
        )
        Console(width=110).print(result_table(self.results))
        return as_metrics(self.results)

    def outcome(self) -> dict[str, Any]:
        """What `result.json` holds of an evaluation."""
        return {"eval": {result.data_source: _record(result) for result in self.results}}


def _problem_of(sample: Sample) -> Problem:
    return Problem(sample.data_source, sample.problem_index)


def _read(store: Store) -> Sequence[Sample]:
    """The answers that a run's place holds; none where there is no file, or a damaged one."""
    key = f"{FOLDER}/{GENERATIONS_FILE}"
    if not store.exists(key):
        return []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / GENERATIONS_FILE
        store.get_file(key, copy)
        try:
            return read_generations(copy)
        except ValueError as error:  # pyarrow's own among them
            logger.warning("%s of %s cannot be read, so its answers are asked for again: %s", key, store, error)
            return []


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
        "reward": {
            "mean": reward.mean.value,
            "standard_error": error(reward.mean),
            "std": reward.std.value,
        },
        "numbers": {
            name: {"mean": mean.value, "standard_error": error(mean), "num_answers": num_answers}
            for name, (mean, num_answers) in result.numbers.items()
        },
    }
