"""What is counted of each micro-batch that the student trains on: for the step's metrics, the monitor and people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensordict import TensorDict

from opd.config import OpdAgentSpec, OpdSpec
from opd.config.algorithm import Stage
from opd.losses import DivergenceOutput
from opd.worker.head import DivergenceTask
from opd.worker.signs import neighbour_signs, preference_signs, token_signs
from opd.worker.step_metrics import micro_batch_counts, no_teacher_counts, policy_counts
from opd.worker.token_view import TokenView


def row_names(data: TensorDict) -> list[str]:
    """What a person calls each row of a batch: `data row 17, sample 2`, or its place where it does not say."""
    if "index" not in data:
        return [f"row {number} of the batch" for number in range(len(data))]
    indices, samples = ([int(value) for value in data[name]] for name in ("index", "session_id"))
    return [f"data row {index}, sample {sample}" for index, sample in zip(indices, samples, strict=True)]


def is_sampled(spec: OpdSpec | OpdAgentSpec, stage: Stage) -> bool:
    """Whether a step's trained tokens are drawn from the whole distribution of the student that the step begins with.

    Under the schedule carry earlier weights made many of them.
    """
    is_of_these_weights = stage.rollouts == "student" and spec.rollout.schedule == "strict"
    return is_of_these_weights and not spec.rollout.is_truncated


@dataclass(frozen=True, kw_only=True)
class StudentCounts:
    """Counts one step on this rank.

    Args:
        policy_weight: of the policy loss in the loss.
        row_names: what a person calls each of its rows.
        view: takes note of tokens for people; None: nobody asked.
        nonfinite_rows: filled with the names of rows that have a token whose loss is not finite.
    """

    spec: OpdSpec | OpdAgentSpec
    stage: Stage
    policy_weight: float
    row_names: Sequence[str]
    view: TokenView | None
    nonfinite_rows: set[str] = field(default_factory=set)

    def count(
        self, micro_batch: TensorDict, task: DivergenceTask, output: DivergenceOutput, *, first_update: bool
    ) -> dict[str, float]:
        """Counts of a micro-batch, to be summed by `opd.worker.step_metrics.reduce`."""
        counts = no_teacher_counts(self.spec.routed)  # every rank has the same, whatever rows it has
        counts |= micro_batch_counts(micro_batch, task, output, first_update=first_update)
        if self.spec.trainer.monitor:
            counts |= self._signs(micro_batch, task, output, first_update=first_update)
        if task.policy is not None:
            counts |= policy_counts(task, output, weight=self.policy_weight)
        if self.view is not None:
            self.view.trained(micro_batch["opd_row"].tolist(), task, output)
        if counts["sum/nonfinite"]:
            rows = micro_batch["opd_row"].cpu()[task.token_rows.cpu()[output.nonfinite.cpu()]]
            self.nonfinite_rows.update(self.row_names[row] for row in rows.unique().tolist())
        return counts

    def _signs(
        self, micro_batch: TensorDict, task: DivergenceTask, output: DivergenceOutput, *, first_update: bool
    ) -> dict[str, float]:
        """What the monitor of silent faults reads."""
        drawn = first_update and is_sampled(self.spec, self.stage)
        counts = token_signs(task, output, is_sampled=drawn) | neighbour_signs(task)
        if task.own is None and "row_score" in micro_batch:
            counts |= preference_signs(task.token_rows, micro_batch["row_score"], output)
        return counts
