"""The fused kernels for Hopper GPUs as a backend of `head_loss`; the import compiles no kernel."""

import torch
from torch import Tensor

from opd.head_form import Need, fused_lacks
from opd.losses.chunks import Forward
from opd.losses.hopper.loop import run
from opd.losses.padded_head import Trained
from opd.losses.terms import HiddenTargets, Request

RETRY_AFTER = 64
"""Calls with fp32 logits before fp16 is tried again. A try that fails costs half a call, fp32 a tenth of each."""


class HopperBackend:
    """A backend for the gradient of an exact divergence over the whole vocabulary, from a teacher's hidden states.

    Where student and teacher are nearly equal, the expected rounding error of the gradient is too large. The call then
    repeats with fp32 logits, and the next calls begin with them. Statistics of a token whose logits are not finite are 0.
    """

    def __init__(self) -> None:
        self._num_wide = 0

    def obstacle(self, weight: Tensor, request: Request) -> str | None:
        """Return the reason why the kernels cannot run a call. None means that they can."""
        if not len(request.ids):
            return "there are no tokens"
        if not isinstance(request.targets, HiddenTargets) or request.weights.divergence is None:
            return "there is no divergence from hidden states"
        heads = (weight, request.targets.weight)
        for head in heads:
            if head.shape[1] % 8 or not head.is_contiguous():
                return f"a head of shape {tuple(head.shape)} needs contiguous rows of a multiple of 8 entries"
        need = Need(
            request.loss.kind,
            request.loss.top_k,
            frozenset(name for name, values in request.per_token.items() if values is not None),
            frozenset("bf16" if head.dtype == torch.bfloat16 else str(head.dtype) for head in heads),
            torch.cuda.get_device_capability(weight.device) if weight.device.type == "cuda" else None,
        )
        return fused_lacks(need)

    def forward(self, hidden: Tensor, weight: Tensor, request: Request, trained: Trained) -> Forward:
        """Run a call."""
        is_wide = self._num_wide % RETRY_AFTER > 0
        with torch.cuda.device(hidden.device):
            forward, is_wide = run(hidden, weight, request, trained, is_wide=is_wide)
        self._num_wide = self._num_wide + 1 if is_wide else 0
        return forward
