"""What engines read of a step's rows without a gradient, and where in it the trained tokens lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import distributed
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker

from opd.batch import TEACHER_PROMPTS, LossPositions, RolloutRows, loss_positions

READ = ("input_ids", "position_ids", "opd_row")
"""What an engine reads of rows without a gradient."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How rows are cut into forwards without a gradient.

    Args:
        num_tokens: of a forward on one rank, or of its longest row; None: as many as the engine's inference settings say.
        num_sharing: ranks that share each sequence.
        device: where this rank computes.
    """

    num_tokens: int | None
    num_sharing: int
    device: torch.device

    def rows_at_once(self, worker: TrainingWorker) -> int:
        """Their number must be a multiple of this; 1: they are cut by tokens."""
        config = worker.engine_config
        by_tokens = config.use_dynamic_bsz or self.num_tokens is not None
        return 1 if by_tokens or worker.engine.is_row_alone else int(config.infer_micro_batch_size_per_gpu)

    def at_least_a_row(self, num_tokens: int, data: TensorDict) -> int:
        """That many tokens on one rank, or the longest row's of any: a row is never cut, and verl takes one limit on all (a collective call)."""
        longest = data["input_ids"].offsets().diff().max().to(self.device)
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        return max(num_tokens, -(-int(longest) // self.num_sharing))

    def inputs(self, data: TensorDict, worker: TrainingWorker) -> TensorDict:
        """The rows as an engine reads them, cut by tokens (a collective call), or as its inference settings say."""
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
        num_rows = next((size for size in range(most_rows, 0, -1) if len(data) % size == 0), 1)
        tu.assign_non_tensor(
            inputs,
            use_remove_padding=worker.model_config.use_remove_padding,
            use_dynamic_bsz=num_tokens is not None,
            max_token_len_per_gpu=num_tokens or config.infer_max_token_len_per_gpu,
            micro_batch_size_per_gpu=num_rows,
            temperature=1.0,
        )
        return inputs


def trained_positions(
    rows: RolloutRows, micro_batch: TensorDict, starts: torch.Tensor
) -> tuple[RolloutRows, LossPositions]:
    """The rows of a micro-batch and the hidden states that predict their trained tokens (never prompt or tool tokens)."""
    rows = rows.select(micro_batch["opd_row"])
    return rows, loss_positions(rows, row_starts=starts).trained()


def read_by_teacher(data: TensorDict) -> torch.Tensor | None:
    """Nested [B, j] int64: prompts of the teacher's own followed by the responses; None: it reads `input_ids`."""
    if TEACHER_PROMPTS not in data:
        return None
    pairs = zip(data[TEACHER_PROMPTS].unbind(), data["responses"].unbind(), strict=True)
    return torch.nested.as_nested_tensor([torch.cat(pair) for pair in pairs], layout=torch.jagged)


def as_teacher_reads(data: TensorDict, rows: RolloutRows) -> TensorDict:
    """What an engine reads of `rows`, which are those of `data` with prompts of the teacher's own."""
    read = data.select("opd_row")
    read["input_ids"], read["position_ids"] = rows.nested(rows.input_ids), rows.nested(rows.position_ids)
    return read
