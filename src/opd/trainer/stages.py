"""Training targets of a distillation's steps on the driver's side: the stage, the teacher's answers in it, the horizon."""

from collections.abc import Sequence
from dataclasses import replace

from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.algorithm import LossType
from opd.experiment.errors import Problem, SpecError
from opd.rollout.batches import Batch
from opd.rollout.rows import Row
from opd.trainer.dataset import PromptDataset
from opd.trainer.teacher_answers import TeacherAnswers
from opd.weights.stages import Schedule


class Stages:
    """The run's schedule, and its effect on a step's prompts.

    Raises:
        SpecError: a stage would have no step, or `TeacherAnswers` refuses the files.
    """

    def __init__(self, spec: OpdSpec | OpdAgentSpec, dataset: PromptDataset, *, total_steps: int) -> None:
        self._spec, opd = spec, spec.opd
        try:
            self.schedule = Schedule.of(opd, total_steps=total_steps)
        except ValueError as error:
            fix = "ends in ascending order, and more steps (trainer.total_steps) than stages"
            raise SpecError([Problem(path="opd.stages", rule=str(error), fix=fix)]) from error
        self._answers: TeacherAnswers | None = None
        if any(stage.rollouts == "teacher" for stage in opd.stages):
            self._answers = TeacherAnswers(
                opd.teacher_answers or (), dataset, seed=spec.seed, key="opd.teacher_answers"
            )
        one, answers = spec.has_events and not spec.teachers, self._answers
        self._gives_events = one and answers is not None and (not spec.all_teachers or answers.have_events)
        if answers is not None and self._gives_events:
            answers.check_events()

    def loss_type(self, step: int) -> LossType:
        """Return the divergence that a step trains by."""
        loss_type = self.schedule.stage(step).loss_type
        assert loss_type is not None  # `Schedule` fills it in
        return loss_type

    def of(self, batch: Batch) -> Batch:
        """Give a step's prompts the teacher's answers, in a stage that trains on them, and the horizon."""
        step, given = batch.step, batch.given
        if self._answers is not None and self.schedule.stage(step).rollouts == "teacher":
            given = [
                dict(enumerate(self._answers.of(int(prompt["index"]), step=step, num_samples=batch.num_samples)))
                for prompt in batch.prompts
            ]
        has_events = self._gives_events and bool(given)
        return replace(batch, given=given, has_events=has_events, max_tokens=self.num_generated)

    def put_events(self, rows: Sequence[Row], step: int) -> None:
        """Give the rows of the teacher's answers their events, where the files have them in the place of a server."""
        if self._answers is None or not self._gives_events or self.schedule.stage(step).rollouts == "student":
            return
        for row in rows:
            found = self._answers.events(row.order.index, step=step, sample=row.order.sample)
            row.columns |= {name: values[: len(row.response)] for name, values in found.items()}

    @property
    def num_generated(self) -> int | None:
        """Return the tokens of a response that the horizon lets be generated. None means as many as the data allow."""
        horizon = self._spec.opd.horizon
        return horizon.tokens if horizon.applies == "generate" else None

    def metrics(self, step: int) -> dict[str, float]:
        """Return stage (from 1) and weights of the two parts of the loss, each where the run has such."""
        metrics: dict[str, float] = {}
        if self._spec.opd.has_policy:
            weights = self.schedule.weights_at(step)
            metrics |= {"opd/divergence_weight": weights.divergence, "opd/policy_weight": weights.policy}
        if self._spec.opd.stages:
            metrics["opd/stage"] = self.schedule.number(step) + 1.0
        return metrics
