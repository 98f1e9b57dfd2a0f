"""Rollouts to distillation batches: packed rows, the positions that predict their responses, and the padded view."""

from opd.batch.builder import (
    TEACHER_PROMPTS,
    OpdBatch,
    build_opd_batch,
    build_opd_batch_from_verl_batch,
    build_opd_batch_multiturn,
)
from opd.batch.rows import (
    LossPositions,
    RolloutRows,
    ToolMaskCounts,
    loss_positions,
    padded_row_starts,
    tool_mask_counts,
    tool_mask_metrics,
)
from opd.batch.sources import rows_from_batch, rows_from_messages

__all__ = [
    "TEACHER_PROMPTS",
    "LossPositions",
    "OpdBatch",
    "RolloutRows",
    "ToolMaskCounts",
    "build_opd_batch",
    "build_opd_batch_from_verl_batch",
    "build_opd_batch_multiturn",
    "loss_positions",
    "padded_row_starts",
    "rows_from_batch",
    "rows_from_messages",
    "tool_mask_counts",
    "tool_mask_metrics",
]
