"""Passes over a step's rows without a gradient: how rows are cut, and numbers of their trained tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker

from opd.batch import TEACHER_PROMPTS, RolloutRows
from opd.losses import Loss, Output
from opd.update.head_loss import HeadLoss

READ = ("input_ids", "position_ids", "opd_row")
"""Columns of rows that an engine reads without a gradient."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The cut of rows into forwards without a gradient.

    Args:
        num_tokens: of a forward on one rank, or of its longest row. None means the engine's inference settings.
        num_sharing: ranks that share each sequence.
        device: where this rank computes.
    """

    num_tokens: int | None
    num_sharing: int
    device: torch.device

    def rows_at_once(self, worker: TrainingWorker) -> int:
        """Return a divisor of the number of rows; 1 where tokens cut them."""
        config = worker.engine_config
        by_tokens = config.use_dynamic_bsz or self.num_tokens is not None
        return 1 if by_tokens or worker.engine.is_row_alone else int(config.infer_micro_batch_size_per_gpu)

    def at_least_a_row(self, num_tokens: int, data: TensorDict) -> int:
        """Return the tokens, or those of the longest row of any rank: verl takes one limit for all (a collective call)."""
        longest = data["input_ids"].offsets().diff().max().to(self.device)
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        return max(num_tokens, -(-int(longest) // self.num_sharing))

    def inputs(self, data: TensorDict, worker: TrainingWorker) -> TensorDict:
        """Return the rows as an engine reads them (a collective call)."""
        inputs = data.select(*READ)
        config, num_tokens = worker.engine_config, self.num_tokens
        if num_tokens is None and config.use_dynamic_bsz:
            num_tokens = config.infer_max_token_len_per_gpu
        if worker.engine.is_row_alone:
            num_tokens = None
        if num_tokens is not None:
            num_tokens = self.at_least_a_row(num_tokens, inputs)
        # verl cuts a rank's rows into equal parts, which a last batch may be too short for.
        most_rows = 1 if worker.engine.is_row_alone else min(config.infer_micro_batch_size_per_gpu or 1, len(data))
        tu.assign_non_tensor(
            inputs,
            use_remove_padding=worker.model_config.use_remove_padding,
            use_dynamic_bsz=num_tokens is not None,
            max_token_len_per_gpu=num_tokens or config.infer_max_token_len_per_gpu,
            micro_batch_size_per_gpu=next((size for size in range(most_rows, 0, -1) if len(data) % size == 0), 1),
            temperature=1.0,
        )
        return inputs


def read_tokens(
    data: TensorDict,
    loss: HeadLoss,
    values: Callable[[Output], dict[str, Tensor]],
    *,
    worker: TrainingWorker,
    reading: Reading,
) -> dict[str, Tensor]:
    """Return numbers of all trained tokens by name, [T] each on the host, by one pass (a collective call).

    Ranks that share a sequence all get the numbers of all its tokens.

    Args:
        loss: of the rows of `data`. values: the numbers in the head's output.
    """
    counts = loss.rows.num_trained_tokens.tolist()
    of_rows: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for micro_batch, task, output in worker.engine.read(reading.inputs(data, worker), loss.task):
        numbers = micro_batch["opd_row"].tolist()
        for name, found in values(output).items():
            if task.own is not None:
                mine, found = found, found.new_zeros(len(task.own))
                found[task.own] = mine
                distributed.all_reduce(found, group=worker.engine.ulysses_parallel_group)
            of_rows[name].update(zip(numbers, found.split([counts[row] for row in numbers]), strict=True))
    return {name: torch.cat([parts[row] for row in range(len(counts))]).cpu() for name, parts in of_rows.items()}


def read_log_probs(
    data: TensorDict, rows: RolloutRows, *, temperature: float, worker: TrainingWorker, reading: Reading, **options: Any
) -> Tensor:
    """Return a model's log-probabilities [T] of the trained tokens; options are fields of the head's task."""
    loss = HeadLoss(rows=rows, loss=Loss(temperature=temperature), options=options)

    def values(output: Output) -> dict[str, Tensor]:
        return {"log_prob": output.statistics["log_prob"]}

    return read_tokens(data, loss, values, worker=worker, reading=reading)["log_prob"]


def read_by_teacher(data: TensorDict) -> Tensor | None:
    """Return nested [B, j] prompts of the teacher's own with the responses. None means that it reads `input_ids`."""
    if TEACHER_PROMPTS not in data:
        return None
    pairs = zip(data[TEACHER_PROMPTS].unbind(), data["responses"].unbind(), strict=True)
    return torch.nested.as_nested_tensor([torch.cat(pair) for pair in pairs], layout=torch.jagged)


def as_teacher_reads(data: TensorDict, rows: RolloutRows) -> TensorDict:
    """Return the columns of `rows`, which are those of `data` with prompts of the teacher's own."""
    read = data.select("opd_row")
    read["input_ids"], read["position_ids"] = rows.nested(rows.input_ids), rows.nested(rows.position_ids)
    return read
