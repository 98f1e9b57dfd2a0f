"""Kinds of training: who answers the prompts of a step, what each row weighs, which update the ranks make, what is validated."""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opd.agent.trajectories import NUM_ANSWERS, Trajectory, file_key, keep_trajectories, to_lines
from opd.experiment import OpdAgentSpec, OpdSpec, SftSpec
from opd.experiment.kinds import TrainSpec
from opd.job import Data, Job
from opd.rollout.batches import Batch, RolloutReport
from opd.rollout.manager import TELL_S
from opd.rollout.rows import Row
from opd.rollout.seeds import TRAIN, VALIDATION
from opd.runs.headline import VALIDATION_LOSS
from opd.runs.progress import PROGRESS
from opd.runs.run import Run
from opd.trainer import metrics as made
from opd.trainer.carried import CarriedRows
from opd.trainer.conversations import GivenAnswers
from opd.trainer.problem_weights import prompt_weights
from opd.trainer.row_facts import RowFacts, TeacherRoute, put_advantages
from opd.trainer.row_signs import RowSigns, generation_header
from opd.trainer.stages import Stages
from opd.trainer.teacher_prompts import TOO_LONG, TeacherPrompts
from opd.trainer.token_log import TokenLog
from opd.update import policy_worker, step_metrics
from opd.update.checks import SkippedUpdates, check_unshared
from opd.update.opd_worker import OPDWorker
from opd.update.student import StudentWorker
from opd.update.teachers import refresh_metrics


def validates(spec: TrainSpec) -> bool:
    """Return True if the run asks its validation prompts, before or between its steps."""
    return spec.trainer.test_freq > 0 or spec.trainer.val_before_train


def serves(spec: TrainSpec) -> bool:
    """Return True if rollout servers answer prompts of a run."""
    if not isinstance(spec, OpdSpec | OpdAgentSpec):
        return not isinstance(spec, SftSpec)
    return bool(spec.all_teachers) or validates(spec)


class Kind:
    """One kind of training; the loop calls its methods in the order of this class.

    Args:
        data: of the run. Prompts that the kind does not train on leave the data set, and then `Data.begin` is called.
        run: the attempt, which keeps what people read.
    """

    worker: type
    reduce: Callable[[Mapping[str, Any]], dict[str, float]]  # a step's metrics from the ranks' counts
    role = "actor_rollout_ref"  # verl's name of the models that a rank holds

    def __init__(self, data: Data, run: Run) -> None:
        self.data, self.run, self.ours = data, run, data.ours
        self.skipped = SkippedUpdates(self.ours.trained.trainer.max_skipped_updates)
        self.select()
        data.begin()
        self.prepare()

    def select(self) -> None:
        """Take prompts that are not trained on out of the data set."""

    def prepare(self) -> None:
        """Read what the kind needs besides the data, now that the number of steps is known."""

    def load(self, folder: Path) -> None:
        """Load what `save` saved."""

    @abstractmethod
    def answers(self, job: Job, step: int) -> tuple[list[Row], dict[str, Any]]:
        """Return the rows of a step, and metrics of how they came."""

    def weigh(self, rows: list[Row]) -> dict[str, Any]:
        """Give each row what the loss multiplies it by; return metrics of that."""
        return {}

    def update(self, job: Job, rows: list[Row], step: int) -> dict[str, Any]:
        """Have the ranks make the step's updates; return their metrics."""
        raw, metrics = job.call_ranks("update_actor", rows)
        self.note_skipped(raw)
        return metrics | self.reduce(raw)

    def save(self, folder: Path) -> None:
        """Save in a step's checkpoint what the ranks do not know."""

    @abstractmethod
    def validate(self, job: Job, step: int) -> dict[str, Any]:
        """Return the metrics of the held-out prompts."""

    @abstractmethod
    def describe(self, job: Job, rows: list[Row], step: int, timing: Mapping[str, float]) -> dict[str, Any]:
        """Return the metrics of a step's rows and of its pace."""

    def check(self) -> None:
        """End a run that the step has shown to learn nothing; its metrics are written, and what it saved is sealed."""
        self.skipped.check()

    def note_skipped(self, raw: Mapping[str, Any], rows: Sequence[str] = ()) -> None:
        """Count the skipped updates of a step's counts; `rows` are the names of those that made them so."""
        self.skipped.see(*step_metrics.skipped(raw), rows)


class Sampled(Kind):
    """A kind whose rows are answers of the rollout servers."""

    def ask(self, job: Job, step: int) -> Batch:
        num = int(job.config.actor_rollout_ref.rollout.n)
        return Batch(prompts=self.data.next_prompts(step), partition=TRAIN, step=step, num_samples=num)

    def answers(self, job: Job, step: int) -> tuple[list[Row], dict[str, Any]]:
        assert job.rollouts is not None
        report = job.rollouts.generate(self.ask(job, step))
        report.check()
        return report.rows, {
            "rollout/trajectories": float(report.num_trajectories),
            "rollout/failed": float(report.num_failed),
            "reward/failed": float(report.num_reward_failed),
            "reward/unread": float(report.num_unread),
            "data/num_overlong_dropped": float(self.data.train.num_overlong_dropped),
            "timing_s/rollout_generate": report.seconds,
            **({"rollout/truncated": 1.0} if self.ours.sampling.rollout.is_truncated else {}),
            **self._keep_dialogues(report),
        }

    def validate(self, job: Job, step: int) -> dict[str, Any]:
        assert job.rollouts is not None
        report, prompts = RolloutReport(), list[Mapping[str, Any]]()
        num = int(job.config.actor_rollout_ref.rollout.val_kwargs.n)
        for asked in self.data.validation_batches():
            batch = Batch(prompts=asked, partition=VALIDATION, step=step, num_samples=num)
            answered = job.rollouts.generate(batch)
            answered.check()
            report.add(answered)
            prompts += asked
        if self.ours.agent is None:
            self._keep_answers(report.rows, prompts, step)
        return made.validation(report.rows, prompts, num_samples=num) | {
            "val-aux/rollout/failed": float(report.num_failed),
            "val-aux/reward/failed": float(report.num_reward_failed),
            "val-aux/num_overlong_dropped": float(self.data.val.num_overlong_dropped),
            **{f"val-aux/{name}": value for name, value in self._keep_dialogues(report).items()},
        }

    def _keep_answers(self, rows: Sequence[Row], prompts: Sequence[Mapping[str, Any]], step: int) -> None:
        """Store the first answers to the first problems of a validation."""
        of, tokenizer = {str(prompt["uid"]): prompt for prompt in prompts}, self.data.tokenizer
        first = sorted((row for row in rows if not row.order.sample), key=lambda row: row.order)[:NUM_ANSWERS]
        kept = [Trajectory.of_answer(row, of[row.uid], step=step, tokenizer=tokenizer) for row in first]
        if kept:
            self.run.keep({file_key("validation", step): to_lines(kept)})

    def _keep_dialogues(self, report: RolloutReport) -> dict[str, float]:
        """Store the report's conversations; return their metrics."""
        keep_trajectories(self.run, self.ours, report.trajectories)
        return report.agent.metrics()


class Grpo(Sampled):
    """Kind `grpo`: verl's advantages and the policy loss, for which the ranks read old and reference log-probabilities."""

    worker, reduce = policy_worker.PolicyWorker, staticmethod(policy_worker.reduce)

    def prepare(self) -> None:
        self.role = "actor_rollout_ref" if self.ours.spec.has_reference else "actor_rollout"

    def weigh(self, rows: list[Row]) -> dict[str, Any]:
        put_advantages(rows, self.data.config.algorithm)
        return {}

    def describe(self, job: Job, rows: list[Row], step: int, timing: Mapping[str, float]) -> dict[str, Any]:
        metrics = made.progress(step, self.data.epoch(step), timing)
        return metrics | made.policy_rows(rows, timing=timing, num_ranks=job.num_ranks)


class Distillation(Sampled):
    """Kinds `opd` and `opd-agent`: the loss is the divergence from teachers of the ranks or of servers."""

    worker = OPDWorker
    _update_metrics: dict[str, float] | None = None

    @property
    def spec(self) -> OpdSpec | OpdAgentSpec:
        assert self.ours.distillation is not None
        return self.ours.distillation

    def select(self) -> None:
        train, spec, problems = self.data.train, self.spec, self.spec.opd.importance.problems
        has_own = any(teacher.prompt is not None for teacher in spec.named_teachers.values())
        self._teacher_prompts = TeacherPrompts(train, spec) if has_own else None
        self._weights = None if problems.weights == "none" else prompt_weights(train, problems, self.run)

    def prepare(self) -> None:
        data, spec = self.data, self.spec
        of_servers = "actor_rollout" if serves(spec) else "actor"
        self.role = "actor_rollout_ref" if spec.named_teachers else of_servers  # a served teacher is no rank's
        self._tokens = TokenLog(spec, self.run)
        self._stages = Stages(spec, data.train, total_steps=data.total_steps)
        route = TeacherRoute(data.train, spec) if spec.teachers else None
        self._facts = RowFacts(opd=spec.opd, weights=self._weights, route=route, prompts=self._teacher_prompts)
        is_carried = spec.rollout.schedule == "carry"
        self._carried = CarriedRows(spec, data.train) if is_carried else None
        header = generation_header(data.tokenizer, data.train.template_kwargs) if spec.trainer.monitor else []
        self._signs = RowSigns(header, num_prompts=len(data.train)) if spec.trainer.monitor else None

    def load(self, folder: Path) -> None:
        if self._carried is not None:
            self._carried.load(folder)

    def ask(self, job: Job, step: int) -> Batch:
        if self._carried is None:
            batch = self._stages.of(super().ask(job, step))
        else:
            assert job.rollouts is not None
            batch = self._carried.batch(step, lambda: self.data.next_prompts(step), job.rollouts)
        if self._facts.route is not None:
            self._facts.route.tell(batch.prompts)
        return batch

    def answers(self, job: Job, step: int) -> tuple[list[Row], dict[str, Any]]:
        rows, metrics = super().answers(job, step)
        self._stages.put_events(rows, step)
        if self._carried is not None:
            carried = self._carried.metrics(step)
            metrics |= carried | {"rollout/failed": carried["rollout/failed"] + metrics["rollout/failed"]}
        return rows, metrics

    def weigh(self, rows: list[Row]) -> dict[str, Any]:
        metrics: dict[str, Any] = self._facts.put(rows)
        if self._teacher_prompts is not None:
            metrics["data/num_teacher_overlong_dropped"] = float(self.data.train.left_out[TOO_LONG])
        return metrics

    def update(self, job: Job, rows: list[Row], step: int) -> dict[str, Any]:
        shown = self._tokens.choose(step, self.data.total_steps, rows)
        raw, metrics = job.call_ranks("update_actor", rows, training_step=step, shown_rows=shown)
        self._update_metrics = step_metrics.reduce(raw, loss_agg_mode=self.spec.opd.loss_agg_mode)
        metrics |= self._update_metrics | self._stages.metrics(step) | refresh_metrics(self.spec.named_teachers, step)
        broken = job.ranks.read_nonfinite_rows() if metrics["opd/skipped"] else []
        orders = {row.order.row_id: row.order for row in rows}
        places = sorted({orders[row_id] for of_rank in broken for row_id in of_rank})
        self.note_skipped(raw, [f"data row {index}, sample {sample}" for index, sample in places])
        return metrics

    def save(self, folder: Path) -> None:
        if self._carried is not None:
            self._carried.save(folder)

    def describe(self, job: Job, rows: list[Row], step: int, timing: Mapping[str, float]) -> dict[str, Any]:
        data = self.data
        metrics = made.progress(step, data.epoch(step), timing)
        metrics |= made.distilled_rows(rows, max_response_length=data.config.data.max_response_length)
        metrics |= made.pace(rows, timing["step"], num_ranks=job.num_ranks)
        if self._signs is not None:
            length = self._stages.num_generated or self.spec.data.max_response_length
            metrics |= self._signs.of(rows, max_tokens=length)
        read, loss_type = job.ranks.read_token_view, self._stages.loss_type(step)
        self._tokens.keep(step, read=read, loss_type=loss_type, tokenizer=data.tokenizer)
        return metrics

    def check(self) -> None:
        super().check()
        if self._update_metrics is not None:
            check_unshared(self._update_metrics, limit=self.spec.opd.max_unshared_mass)


class Sft(Kind):
    """Kind `sft`: cross-entropy on given answers; nothing is rolled out, scored or served."""

    worker, role = StudentWorker, "actor"
    reduce = staticmethod(step_metrics.answer_metrics)
    _VALIDATION_STEP = 0  # every validation is measured on the teacher's answers that this step draws

    @property
    def spec(self) -> SftSpec:
        assert isinstance(self.ours.spec, SftSpec)
        return self.ours.spec

    def prepare(self) -> None:
        self._train = GivenAnswers(self.data.train, self.spec)
        if validates(self.spec):  # a teacher may not have answered the others
            self._val = GivenAnswers(self.data.val, self.spec)

    def answers(self, job: Job, step: int) -> tuple[list[Row], dict[str, Any]]:
        indices = [int(prompt["index"]) for prompt in self.data.next_prompts(step)]
        rows, num_cut = self._train.rows(indices, step)
        dropped = self.data.train.num_overlong_dropped
        return rows, {"sft/num_cut": float(num_cut), "data/num_overlong_dropped": float(dropped)}

    def validate(self, job: Job, step: int) -> dict[str, Any]:
        """Return the loss on the validation rows, over all their trained tokens."""
        num, at_once = len(self.data.val), self.spec.data.train_batch_size
        loss, num_tokens, num_cut = 0.0, 0.0, 0
        tell_at_s = time.monotonic() + TELL_S
        for begin in range(0, num, at_once):
            if time.monotonic() > tell_at_s:
                tell_at_s += TELL_S
                print(f"{begin} of {num} validation rows have been read", flush=True)
            rows, cut = self._val.rows(range(begin, min(begin + at_once, num)), self._VALIDATION_STEP)
            total = step_metrics.totals(job.call_ranks("measure_loss", rows)[0])
            loss, num_tokens, num_cut = loss + total["sum/loss"], num_tokens + total["sum/tokens"], num_cut + cut
            PROGRESS.tick()
        return {
            VALIDATION_LOSS: loss / max(num_tokens, 1.0),
            "val-aux/num_tokens": num_tokens,
            "val-aux/num_cut": float(num_cut),
            "val-aux/num_overlong_dropped": float(self.data.val.num_overlong_dropped),
        }

    def describe(self, job: Job, rows: list[Row], step: int, timing: Mapping[str, float]) -> dict[str, Any]:
        return {
            **made.progress(step, self.data.epoch(step), timing),
            "sft/num_rows": float(len(rows)),
            **made.answer_lengths(rows),
            **made.pace(rows, timing["step"], num_ranks=job.num_ranks),
        }


KINDS: dict[str, type[Kind]] = {"opd": Distillation, "opd-agent": Distillation, "grpo": Grpo, "sft": Sft}
