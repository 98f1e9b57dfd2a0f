"""Rollouts to distillation batches: packed rows, the positions that predict their responses, and the padded view."""

from opd.batch.builder import build_opd_batch, build_opd_batch_from_verl_batch, build_opd_batch_multiturn

__all__ = ["build_opd_batch", "build_opd_batch_from_verl_batch", "build_opd_batch_multiturn"]
