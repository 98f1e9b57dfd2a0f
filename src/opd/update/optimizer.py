"""AdamW and gradient clipping on each rank's shards: no DTensor operation runs, so a step costs the host a few launches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from opd.update.parked import local


class ShardedAdamW(torch.optim.AdamW):
    """AdamW whose arithmetic, which is elementwise, runs on the shards. Its state has the layout of torch's own."""

    def _init_group(self, group: dict[str, Any], *of_parameters: list[Tensor]) -> bool:
        has_complex: bool = super()._init_group(group, *of_parameters)
        with torch.no_grad():
            for tensors in of_parameters:
                tensors[:] = map(local, tensors)
        return has_complex


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], most: float) -> Tensor:
    """Scale gradients so that their norm over all ranks is at most `most` (a collective call); return the norm before.

    All parameters must be sharded over the same mesh.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    shards = [local(gradient) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(shards)))
    if isinstance(gradients[0], DTensor):
        mesh = gradients[0].device_mesh
        for number, placement in enumerate(gradients[0].placements):
            if placement.is_shard() and mesh.size(number) > 1:
                squared = norm.square()
                distributed.all_reduce(squared, group=mesh.get_group(number))
                norm = squared.sqrt()
    torch._foreach_mul_(shards, (most / (norm + 1e-6)).clamp(max=1.0))
    return norm
