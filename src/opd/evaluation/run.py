"""Kinds `eval` and `passrate`: standalone servers answer every prompt `n` times; answers are scored, stored and counted."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import get_dataset_class

from opd.agent.trajectories import keep_trajectories
from opd.cluster.shutdown import GracefulStop
from opd.ending import STOPPED, Ending, serve_pods
from opd.errors import StoreError
from opd.evaluation import events
from opd.evaluation.pass_rates import PASS_RATES_KEY, PassRate, write_pass_rates
from opd.evaluation.problems import Problem
from opd.evaluation.results import SetResult, as_metrics, as_record, evaluate, is_right, result_table
from opd.evaluation.samples import GENERATIONS_KEY, Sample, read_generations, write_generations
from opd.experiment import EvalSpec
from opd.experiment.kinds import PassRateSpec
from opd.experiment.run_config import RunConfig
from opd.rewards import worst_score
from opd.rollout.batches import Batch, RolloutReport
from opd.rollout.manager import RolloutManager
from opd.rollout.reward import reward_function
from opd.rollout.seeds import VALIDATION
from opd.rollout.serving import start_servers
from opd.runs import origin
from opd.runs.progress import PROGRESS
from opd.runs.run import Run
from opd.store.base import Store
from opd.trainer.tracking import Trackers

logger = logging.getLogger(__name__)
STEP = 0  # of the model, which no step of this run has trained


def run(config: DictConfig, run: Run) -> Ending:
    """Evaluate the config's model, or stop before every prompt is answered if the run is asked to end: the next attempt asks the others.

    Raises:
        RuntimeError: not a single answer of a batch came.
    """
    OmegaConf.resolve(config)
    ours = RunConfig.of(config)
    assert isinstance(ours.spec, EvalSpec)  # no other kind starts here
    PROGRESS.watch(
        folder=str(run.attempt_dir),
        floor_s=ours.spec.trainer.stall_floor_s,
        factor=ours.spec.trainer.stall_factor,
    )
    PROGRESS.enter("start", STEP)
    questions = Questions(config, ours.spec)
    answers = Answers(run, questions, ours.spec)
    trackers = Trackers(config, run)
    succeeded = False
    try:
        with GracefulStop() as stop:
            counts, ending = _ask(config, run, questions, answers, trackers, stop)
        if ending is not None:
            if answers.are_stored:
                print(f"stored {len(answers.samples)} answers; the same command continues from here", flush=True)
            return ending
        results = answers.results(worst_score(reward_function(config)))
        Console(width=110).print(result_table(results))
        for result in results:
            if note := result.unread_note(ours.spec.reward.function):
                print(f"note: {result.data_source}: {note}", flush=True)
        metrics = as_metrics(results) | {
            "val-aux/rollout/failed": float(counts.num_failed),
            "val-aux/reward/failed": float(counts.num_reward_failed),
            "val-aux/num_overlong_dropped": float(questions.num_dropped.total()),
            **{f"val-aux/{name}": value for name, value in counts.agent.metrics().items()},
        }
        run.log(STEP, metrics)
        trackers.log(metrics, STEP)
        PROGRESS.rest("end")  # the store's own deadlines bound what is left
        answers.store_the_end()
        succeeded = True
        return Ending(result={"eval": {result.data_source: as_record(result) for result in results}})
    finally:
        trackers.finish(exit_code=0 if succeeded else 1)


def _ask(
    config: DictConfig, run: Run, questions: Questions, answers: Answers, trackers: Trackers, stop: GracefulStop
) -> tuple[RolloutReport, Ending | None]:
    """Ask what no earlier attempt has stored, batch by batch; return this attempt's counts, and an ending before the last batch."""
    counts, rows, size = RolloutReport(), answers.rows_to_ask(), questions.batch_size
    if not rows:
        return counts, None
    serving = start_servers(config)
    origin.add(run.stores[0], run.attempt, devices=Counter(serving.devices), trackers=trackers.links)
    manager = RolloutManager(config, serving.client)
    for start in range(0, len(rows), size):
        PROGRESS.enter("validation", STEP)
        report = manager.generate(questions.batch(rows[start : start + size]), stop)
        answers.keep(report)
        report.check()
        keep_trajectories(run, RunConfig.of(config), report.trajectories)
        counts.add(report)
        print(f"answered {min(start + size, len(rows))} of {len(rows)} prompts", flush=True)
        if report.num_cut or start + size < len(rows):
            ending = serve_pods(run, lambda: STEP if answers.are_stored else None, is_over=lambda: stop.requested) or (
                STOPPED if stop.requested else None
            )
            if ending:
                return counts, ending
    return counts, None


class Questions:
    """The prompts of an evaluation, each with the name of its problem.

    Raises:
        ValueError: no prompt of a data set fits `data.max_prompt_length`.
    """

    def __init__(self, config: DictConfig, spec: EvalSpec):
        model, data = omega_conf_to_dataclass(config.actor_rollout_ref.model), config.data.copy()
        with open_dict(data):
            data.split = spec.data.split.model_dump(exclude_none=True)
        self.dataset = get_dataset_class(data)(
            data_files=data.val_files,
            tokenizer=model.tokenizer,
            processor=model.processor,
            config=data,
            max_samples=spec.data.max_val_samples
            or (isinstance(spec, PassRateSpec) and spec.data.max_train_samples)
            or -1,
        )
        self.num_samples = int(config.actor_rollout_ref.rollout.val_kwargs.n)
        problems = self.dataset.name_problems()
        self.problems: list[Problem] = [problems[place] for place in self.dataset.places]
        if repeated := len(self.problems) - len(set(self.problems)):
            print(f"{repeated} of {len(self.problems)} prompts repeat others, as further answers to them", flush=True)
        self.num_dropped = Counter(
            name.data_source for name in {problems[place] for place in self.dataset.dropped_places}
        )
        self.batch_size = int(data.val_batch_size or len(self.dataset))
        unasked = self.num_dropped.keys() - {problem.data_source for problem in self.problems}
        if unasked:
            raise ValueError(
                f"no prompt of {', '.join(sorted(unasked))} fits data.max_prompt_length="
                f"{data.max_prompt_length} tokens: raise the limit, or leave the data set out"
            )

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return these rows of the data as the rollout manager takes them; a row's number decides its seeds."""
        return Batch(
            prompts=[self.dataset[row] | {"uid": str(row)} for row in rows],
            partition=VALIDATION,
            step=STEP,
            num_samples=self.num_samples,
            is_recorded=True,
        )


class Answers:
    """The answers so far, in the run directory and its store as soon as their batch has ended.

    An attempt begins with the answers of earlier attempts to each problem all of whose answers were scored.
    """

    def __init__(self, run: Run, questions: Questions, spec: EvalSpec):
        self._run, self._questions, self._spec = run, questions, spec
        self._unstored: set[str] = set()  # keys of answers on the disk that the store lacks
        self.samples: list[Sample] = []
        self._num_rows_of = Counter[Problem]()
        self._first_samples: list[int] = []  # the number of each row's first answer among its problem's answers
        for problem in questions.problems:
            self._first_samples.append(self._num_rows_of[problem] * questions.num_samples)
            self._num_rows_of[problem] += 1
        self._answered_before: set[Problem] = set()
        self._has_events = spec.teacher is not None and spec.eval.save_generations
        self._is_joined = False  # all answers have come and are in one file with their events
        if run.attempt == 1:
            return
        stored = max((_read(store) for store in run.stores), key=len)
        self._is_joined = self._has_events and bool(stored)
        if self._has_events and not stored:
            stored = events.read_parts(self._parts())
        num_scored = Counter(_problem_of(sample) for sample in stored if not sample.failed)
        self._answered_before = {
            problem
            for problem, num_rows in self._num_rows_of.items()
            if self._is_joined or num_scored[problem] == num_rows * questions.num_samples
        }
        self.samples = [sample for sample in stored if _problem_of(sample) in self._answered_before]
        if self.samples:
            num, of = len(self._answered_before), len(self._num_rows_of)
            print(f"{num} of {of} prompts have their answers of an earlier attempt", flush=True)

    @property
    def are_stored(self) -> bool:
        """False where the store lacks answers that are on the disk."""
        return not self._unstored

    def rows_to_ask(self) -> list[int]:
        """Return the rows without stored answers; each keeps its number, and with it the seeds of its answers."""
        problems = self._questions.problems
        return [row for row, problem in enumerate(problems) if problem not in self._answered_before]

    def keep(self, report: RolloutReport) -> None:
        """Add a batch's answers; store all of them."""
        without: dict[str, Any] = (
            {} if self._spec.eval.save_generations else {"prompt": "", "response": "", "response_ids": array("i")}
        )
        num_before, found = len(self.samples), {(row, number): columns for row, number, columns in report.events}
        for sample in report.samples:
            row = sample.problem_index
            named = self._questions.problems[row]._asdict()
            named["sample_index"] = self._first_samples[row] + sample.sample_index
            self.samples.append(replace(sample, **named, **without))
        if self.samples:
            key = GENERATIONS_KEY
            if self._has_events:
                key = f"{events.PARTS_PREFIX}/{self._run.attempt:04d}-{num_before:08d}.parquet"
                columns = [found[one.problem_index, one.sample_index] for one in report.samples]
                pairs = zip(self.samples[num_before:], columns, strict=True)
                events.write_part(self._run.local.root / key, pairs)
            else:
                write_generations(self._run.local.root / key, self.samples)
            self._unstored.add(key)
            try:
                for late in sorted(self._unstored):
                    self._upload(late)
                    self._unstored.remove(late)
            except StoreError as error:
                text = "the store does not take the answers, which are on the disk; retry at the end: %s"
                logger.warning(text, error)

    def results(self, worst_reward: float) -> list[SetResult]:
        """Return the results of every data set.

        Args:
            worst_reward: of the reward function, for answers that never came.
        """
        asked: dict[str, list[int]] = {}
        for problem in self._questions.problems:
            asked.setdefault(problem.data_source, []).append(problem.problem_index)
        return evaluate(
            self.samples,
            num_samples=self._questions.num_samples,
            problems=asked,
            num_dropped=self._questions.num_dropped,
            worst_reward=min([worst_reward, *(sample.score for sample in self.samples)]),
        )

    def pass_rates(self) -> list[PassRate]:
        """Return the pass rate of every problem, in the order of the data."""
        num_right = Counter(_problem_of(sample) for sample in self.samples if is_right(sample))
        spec, questions = self._spec, self._questions
        checkpoint = spec.teacher.path if spec.teacher else spec.eval.checkpoint or spec.model.path
        names = dict(zip(questions.problems, questions.dataset.prompt_ids(), strict=True))
        sizes = {problem: num_rows * questions.num_samples for problem, num_rows in self._num_rows_of.items()}
        return [
            PassRate(prompt_id=names[problem], pass_rate=num_right[problem] / k, k=k, checkpoint=checkpoint)
            for problem, k in sizes.items()
        ]

    def store_the_end(self) -> None:
        """Write the pass rates; store them, and the answers if the store lacks any, or their events.

        Raises:
            StoreError: with where everything is.
        """
        if self._has_events and not self._is_joined:
            events.join(self._run.local.root / GENERATIONS_KEY, self.samples, self._parts())
        if self._has_events and self._run.local.exists(GENERATIONS_KEY):  # an earlier attempt may have joined it here
            self._unstored = {GENERATIONS_KEY}
        write_pass_rates(self._run.local.root / PASS_RATES_KEY, self.pass_rates())
        with self._run.storing_the_end():
            for key in (PASS_RATES_KEY, *self._unstored):
                self._upload(key)
            for store in self._run.stores if self._has_events else ():
                store.delete_tree(events.PARTS_PREFIX)

    def _parts(self) -> list[Path]:
        """Return the parts of all attempts on this disk, by attempt; the store's are fetched first."""
        keys = sorted({found.key for store in self._run.stores for found in store.list(events.PARTS_PREFIX)})
        for path in (paths := [self._run.local.root / key for key in keys]):
            if not path.exists() and self._run.remote is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_name(f".{path.name}")
                self._run.remote.get_file(f"{events.PARTS_PREFIX}/{path.name}", unfinished)
                unfinished.replace(path)
        return paths

    def _upload(self, key: str) -> None:
        if self._run.remote is not None:
            self._run.remote.put_file(key, self._run.local.root / key)


def _problem_of(sample: Sample) -> Problem:
    return Problem(sample.data_source, sample.problem_index)


def _read(store: Store) -> Sequence[Sample]:
    """Return the answers that a run's place holds; none if there is no file, or a damaged one."""
    if not store.exists(GENERATIONS_KEY):
        return []
    try:
        return read_generations(store.get(GENERATIONS_KEY))
    except ValueError as error:  # pyarrow's own among them
        logger.warning("%s of %s is unreadable, so its problems are asked again: %s", GENERATIONS_KEY, store, error)
        return []
