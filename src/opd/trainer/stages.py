"""What the steps of a distillation train on, on the driver's side: the stage, the teacher's answers in it, the horizon."""

from __future__ import annotations

from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from opd.config import OpdAgentSpec, OpdSpec
from opd.config.algorithm import LossType
from opd.config.errors import Problem, SpecError
from opd.importance import Schedule
from opd.rollout.worker import GIVEN, MAX_TOKENS
from opd.trainer.dataset import PromptDataset
from opd.trainer.teacher_answers import TeacherAnswers


class Stages:
    """The run's schedule, and what it makes of a step's prompts.

    Args:
        dataset: the training prompts.
        tokenizer: the student's.

    Raises:
        SpecError: a stage would have no step, or `TeacherAnswers` refuses the files.
    """

    def __init__(
        self, spec: OpdSpec | OpdAgentSpec, dataset: PromptDataset, tokenizer: object, *, total_steps: int
    ) -> None:
        self._spec = spec
        opd = spec.opd
        try:
            self.schedule = Schedule.of(opd, total_steps=total_steps, response_length=spec.data.max_response_length)
        except ValueError as error:
            fix = "ends in ascending order, and more steps (trainer.total_steps) than stages"
            raise SpecError([Problem(path="opd.stages", rule=str(error), fix=fix)]) from error
        self._answers: TeacherAnswers | None = None
        if any(stage.rollouts == "teacher" for stage in opd.stages):
            self._answers = TeacherAnswers(
                opd.teacher_answers or (), dataset, tokenizer, seed=spec.seed, key="opd.teacher_answers"
            )

    def loss_type(self, step: int) -> LossType:
        """The divergence that a step trains by."""
        loss_type = self.schedule.stage(step).loss_type
        assert loss_type is not None  # `Schedule` fills it in
        return loss_type

    def put(self, batch: TensorDict, step: int) -> None:
        """Give a step's prompts the teacher's answers, in a stage that trains on them, and the step's horizon."""
        if self._answers is not None and self.schedule.stage(step).rollouts == "teacher":
            num_samples = self._spec.rollout.num_samples
            answers = [self._answers.of(int(i), step=step, num_samples=num_samples) for i in batch["index"]]
            given = [dict(enumerate(of_prompt)) for of_prompt in answers]
            tu.assign_non_tensor_stack(batch, GIVEN, given)
        if (generated := self.num_generated(step)) is not None:
            tu.assign_non_tensor_data(batch, MAX_TOKENS, generated)

    def num_generated(self, step: int) -> int | None:
        """Tokens that the step's horizon lets be generated of a response; None: as many as the data allow."""
        return self.schedule.num_tokens(step) if self._spec.opd.horizon.applies == "generate" else None

    def metrics(self, step: int) -> dict[str, float]:
        """The step's stage, counted from 1, and its horizon in tokens, of a run that has stages or a horizon; the weights of the
        two parts of the loss, of a run that has a policy gradient."""
        metrics: dict[str, float] = {}
        if self._spec.opd.has_policy:
            weights = self.schedule.weights_at(step)
            metrics |= {"opd/divergence_weight": weights.divergence, "opd/policy_weight": weights.policy}
        if self._spec.opd.stages:
            metrics["opd/stage"] = self.schedule.number(step) + 1.0
        if self._spec.opd.horizon.tokens is not None:
            metrics["opd/horizon"] = float(self.schedule.num_tokens(step) or self._spec.data.max_response_length)
        return metrics
