"""The output head that turns hidden states into logits, into cached hidden states, or into a loss.

It works inside its own forward: outside of it an untied `lm_head.weight` is one rank's shard.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from opd.errors import Unfit
from opd.update.loss_task import LossTask


class CollectTask(NamedTuple):
    """Return the hidden states at `positions` ([N] int64, indices into the flattened tokens) and no logits."""

    positions: torch.Tensor

    def to(self, device: torch.device) -> CollectTask:
        """Return the task with its tensor on a device."""
        return CollectTask(self.positions.to(device, non_blocking=True))


class ProbeTask(NamedTuple):
    """Return plain logits and keep them in `seen`, so that the model's final logits can be compared with them."""

    seen: list[torch.Tensor]


AnyTask = TypeVar("AnyTask", CollectTask, LossTask)
"""A task of a step."""


class DistillationHead(nn.Linear):
    """A drop-in `lm_head` with the same parameter names; `run_with_task` attaches a task for one forward."""

    task: CollectTask | LossTask | ProbeTask | None = None

    @classmethod
    def replace(cls, model: nn.Module) -> DistillationHead:
        """Make the model's output embedding, tied or not, a head of this class; refuse one that is not `hidden @ W.T`."""
        old = model.get_output_embeddings()  # type: ignore[operator]  # a method of transformers' models
        name = next((n for n, m in model.named_modules() if m is old), None)
        if type(old) is not nn.Linear or name is None:  # a subclass may scale or cap in its own forward
            raise Unfit(f"{type(model).__name__}: output head is {type(old).__name__}, a plain nn.Linear is needed")
        if old.bias is not None:
            raise Unfit(f"{type(model).__name__}.{name} has a bias: logits are not hidden @ W.T, not supported")
        # Change the class in place: the module object, its weight tie and any hooks stay what they are.
        old.__class__ = cls
        return old

    def forward(self, input: torch.Tensor) -> Any:
        """Return logits [..., V] of hidden states [..., d], or with a task hidden states [N, d] or the loss's `Output`."""
        task = self.task
        if task is None:
            return super().forward(input)
        if isinstance(task, ProbeTask):
            logits = super().forward(input)
            task.seen.append(logits)
            return logits
        hidden = input.reshape(-1, input.shape[-1]).index_select(0, task.positions)
        if isinstance(task, CollectTask):
            return hidden
        return task.output(hidden, self.weight)


def run_with_task(
    model: nn.Module, head: DistillationHead, task: CollectTask | LossTask | ProbeTask, **inputs: Any
) -> Any:
    """Return the `logits` output of a forward of `model` with `task` attached to its head."""
    head.task = task
    try:
        return model(**inputs, use_cache=False).logits
    finally:
        head.task = None


def check_head_is_plain(model: nn.Module, head: DistillationHead, name: str, **inputs: Any) -> None:
    """Refuse a model that changes its head's output (soft cap, scale); `inputs` are a small batch, `name` is for the error."""
    seen: list[torch.Tensor] = []
    with torch.no_grad():
        logits = run_with_task(model, head, ProbeTask(seen), **inputs)
    expected = seen[0]
    scale = expected.abs().max().clamp_min(1e-6)
    error = ((logits.float() - expected.float()).abs().max() / scale).item()
    if error > 1e-3:
        config = getattr(model, "config", None)
        extras = {
            key: value
            for key in ("final_logit_softcapping", "logit_scale", "logits_scaling")
            if (value := getattr(config, key, None)) is not None
        }
        raise Unfit(
            f"{name}: its logits are not hidden @ W.T (relative difference {error:.2g}; config {extras or 'shows no cause'}); "
            "distillation from hidden states needs a plain head (Qwen, Llama, Mistral, ...); Gemma, Cohere and Granite are not supported"
        )
