"""The worker of supervised fine-tuning: the update of all kinds with the tokens' negative log-likelihood as its one term."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils.torch_functional import allgather_dict_into_dict

from opd.batch.builder import rows_from_batch
from opd.losses import Loss, Weights
from opd.update.losses import HeadLoss
from opd.update.step_metrics import on_host, over_sequence, shared_metrics, totals
from opd.update.student import StudentWorker, as_output


def reduce(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the step's metrics from the lists that the workers returned."""
    total = totals(raw)
    mean = total["sum/loss"] / max(total["sum/tokens"], 1.0)
    return {"actor/loss": mean, "actor/num_tokens": total["sum/tokens"]} | shared_metrics(raw)


class AnswerWorker(StudentWorker):
    """Trains on rows of given answers, and measures the loss on others; in role `actor` it builds no rollout."""

    def _loss(self, data: TensorDict) -> HeadLoss:
        """Return the mean of -log p over all trained tokens of an update."""
        rows = rows_from_batch(data)
        weights = Weights(nll=torch.ones(int(rows.response_mask.sum())))
        return HeadLoss(rows=rows, loss=Loss(), weights=weights, options={"sizes": self.sizes})

    def make_updates(self, data: TensorDict, timing: dict[str, float]) -> dict[str, Any] | None:
        return self.train(data, self._loss(data), timing)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def measure_loss(self, data: TensorDict) -> TensorDict | None:
        """Measure the loss on rows as of `update_actor`, without a gradient; no rows, and `metrics` for `totals`."""
        engine, loss = self.student_engine, self._loss(data)
        data["opd_row"] = torch.arange(len(data))
        found: dict[str, list[Any]] = {"sum/loss": [], "sum/tokens": []}
        for micro_batch, task, output in engine.read(data, loss.task):
            for name, value in loss.metrics(micro_batch, task, output, first_update=False).items():
                found[name].append(value)
        counts = on_host(found)
        if engine.use_ulysses_sp:
            counts = over_sequence(counts, engine.ulysses_parallel_group)
        of_ranks = allgather_dict_into_dict(counts, engine.get_data_parallel_group())
        return as_output(of_ranks) if engine.is_mp_src_rank_with_outputs() else None
