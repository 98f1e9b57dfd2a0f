"""The fused kernels as a backend of `head_loss`: the calls that they can run, and the precision in which they store logits."""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

from opd.head_form import WORKSPACE_GIB, Need, fused_lacks
from opd.losses.chunks import Forward
from opd.losses.hopper.plan import LogitsPrecision
from opd.losses.terms import HiddenTargets, Request

RETRY_AFTER = 64
"""Calls with fp32 logits before fp16 is tried again. A try that fails costs half a call, fp32 a tenth of each."""


class HopperBackend:
    """Trains with an exact divergence over the whole vocabulary, from a teacher's hidden states, alone.

    It keeps its workspace besides inputs, gradients and numbers per token, whatever the number of tokens. Logits are
    stored in fp16 as distances below the maximum of their block of 256. Where the gradient's expected rounding error is
    too large (student and teacher nearly equal), the call repeats with fp32 logits, and the next calls begin with them.
    A token whose logits are not finite is reported, and its numbers and gradient are 0. Sums have a fixed order.
    """

    def __init__(self) -> None:
        self._num_wide = 0

    def lacks(self, need: Need) -> str | None:
        """Return the part of a loss, or of a device, for which there is no kernel. None means that all is there."""
        return fused_lacks(need)

    def obstacle(self, weight: Tensor, request: Request) -> str | None:
        """Return the reason why the kernels cannot run a call, besides what they lack. None means that they can."""
        if not isinstance(request.targets, HiddenTargets):
            return "targets are no hidden states"
        if request.weights.divergence is None or not request.trains:
            return "no gradient is asked for"
        for head in (weight, request.targets.weight):
            if head.shape[1] % 8 or not head.is_contiguous():
                return f"a head of shape {tuple(head.shape)} needs contiguous rows of a multiple of 8 entries"
        return _missing_module()

    @property
    def precision(self) -> LogitsPrecision:
        """Return the precision of logits in the next call's first try."""
        return "fp32" if self._num_wide % RETRY_AFTER else "fp16"

    def forward(
        self, hidden: Tensor, weight: Tensor, request: Request, *, need_hidden: bool, need_weight: bool
    ) -> Forward:
        """Run a call."""
        from opd.losses.hopper.run import run

        workspace = int((request.workspace_gib or WORKSPACE_GIB["fused"]) * 2**30)
        with torch.cuda.device(hidden.device):
            result = run(
                hidden,
                weight,
                request,
                precision=self.precision,
                workspace_bytes=workspace,
                need_hidden=need_hidden,
                need_weight=need_weight,
            )
        self._num_wide = self._num_wide + 1 if result.facts["precision"] == "fp32" else 0
        return result


@functools.cache
def _missing_module() -> str | None:
    for module in ("triton", "cuda.bindings"):
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # the parent package is missing too
            found = False
        if not found:
            return f"the module {module} is not installed"
    return None
