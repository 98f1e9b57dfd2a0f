"""The worker of supervised fine-tuning: the update of all kinds with the tokens' negative log-likelihood as its one term."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils.torch_functional import allgather_dict_into_dict

from opd.batch import rows_from_batch
from opd.losses import Loss, Output, Weights
from opd.memory.sources import update_settings
from opd.update.counts import Counts, exact_sum, flatten, on_host, shared_metrics, totals
from opd.update.head_loss import HeadLoss
from opd.update.loss_task import LossTask
from opd.update.step_metrics import over_sequence
from opd.update.student import StudentWorker, as_output, numbered

LOSS_SUM, NUM_TOKENS = "sum/loss", "sum/tokens"


class AnswerLoss(HeadLoss):
    """The mean of -log p over all trained tokens of an update."""

    def metrics(self, micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool = True) -> Counts:
        return {LOSS_SUM: output.loss.detach(), NUM_TOKENS: float(len(task.token_ids))}


def sums(raw: Mapping[str, Any]) -> tuple[float, float]:
    """Return (loss, number of trained tokens), each summed over the lists that micro-batches, ranks and updates made."""
    return exact_sum(flatten(raw[LOSS_SUM])), exact_sum(flatten(raw[NUM_TOKENS]))


def reduce(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the step's metrics from the lists that the workers returned."""
    total = totals(raw)
    mean = total[LOSS_SUM] / max(total[NUM_TOKENS], 1.0)
    return {"actor/loss": mean, "actor/num_tokens": total[NUM_TOKENS]} | shared_metrics(raw)


class AnswerWorker(StudentWorker):
    """Trains on rows of given answers, and measures the loss on others; in role `actor` it builds no rollout."""

    def _loss(self, data: TensorDict) -> AnswerLoss:
        rows = rows_from_batch(data)
        ones = torch.ones(int(rows.response_mask.sum()))
        options = {"workspace_gib": update_settings(self.ours.trained).workspace_gib}
        return AnswerLoss(rows=rows, loss=Loss(), weights=Weights(nll=ones), options=options)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        """Make every optimizer update of one step over this rank's rows.

        Args:
            data: nested `input_ids`, `position_ids`, `prompts`, `responses`, `response_mask`, `loss_mask`; verl's batch settings.

        Returns:
            No rows; `metrics`: lists of counts for `reduce`.
        """
        data = numbered(data)
        return as_output(self.train(data, self._loss(data)))

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def measure_loss(self, data: TensorDict) -> TensorDict | None:
        """Measure the loss on rows as of `update_actor`, without a gradient; no rows, and `metrics` for `sums`."""
        data, engine = numbered(data), self.student_engine
        loss, found = self._loss(data), dict[str, list[Tensor | float]]()
        for micro_batch, task, output in engine.read(self.reading.inputs(data, self.actor), loss.task):
            for name, value in loss.metrics(micro_batch, task, output).items():
                found.setdefault(name, []).append(value)
        counts = {name: sum(values) for name, values in on_host(found).items()}
        if engine.use_ulysses_sp:
            counts = over_sequence(counts, engine.ulysses_parallel_group, engine.device)
        of_ranks = allgather_dict_into_dict(counts, engine.get_data_parallel_group())
        return as_output(of_ranks) if engine.is_mp_src_rank_with_outputs() else None
