"""Clipping and AdamW on shards against torch's own."""

from __future__ import annotations

import pytest
import torch
from tests.ports import free_ports
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from opd.update.engines import ShardedAdamW, clip_gradients

STEPS, MOST = 3, 0.5


@pytest.fixture(scope="module")
def mesh():
    store = distributed.TCPStore("127.0.0.1", free_ports(1)[0], 1, is_master=True)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def _trained(kind, clip, wrap=lambda tensor: tensor) -> tuple[list[torch.Tensor], list[float]]:
    draw = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(wrap(torch.randn(shape, generator=draw))) for shape in ((3, 4), (5,))]
    optimizer, norms = kind(weights, lr=0.1, weight_decay=0.01), []
    for _ in range(STEPS):
        for weight in weights:
            weight.grad = wrap(torch.randn(weight.shape, generator=draw))
        norms.append(float(clip(weights, MOST)))
        optimizer.step()
    return [getattr(weight, "full_tensor", weight.detach)().detach() for weight in weights], norms


def test_sharded_updates_are_those_of_torch(mesh):
    expected, norms = _trained(torch.optim.AdamW, torch.nn.utils.clip_grad_norm_)
    found, found_norms = _trained(ShardedAdamW, clip_gradients, lambda tensor: distribute_tensor(tensor, mesh))
    assert found_norms == pytest.approx(norms, rel=1e-6)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its)


def test_a_gradient_that_is_not_finite_shows_in_the_norm():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([1.0, torch.nan])
    assert clip_gradients([weight], 1.0).isnan()
