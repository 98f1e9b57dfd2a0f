"""Weights that wait on the host, on a CUDA device: a forward sees all of its own while the next model's weights come."""

import pytest
import torch
from tests.gpu import needs
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from opd.update.parked import ParkedWeights, local

needs.devices(1, "copies beside computing need a CUDA device")

WIDTH, LAYERS = 4096, 6


def _model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    with torch.device("cuda"):
        layers = [nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS)]
    model = nn.Sequential(*layers).requires_grad_(False)
    mesh = distributed.init_device_mesh("cuda", (1,))
    for layer in model[:-1]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@pytest.mark.parametrize("way", ["at once", "as read"])
@pytest.mark.parametrize("expandable", [False, True], ids=["segments", "expandable segments"])
def test_each_of_two_models_reads_its_own_weights_while_the_other_ones_come_and_go(group, expandable, way):
    """Memory is returned while forwards are still queued; verl has the allocator unmap what it returns in every step."""
    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{expandable}")
    models = [_model(seed) for seed in (1, 2)]
    rows = torch.randn(16384, WIDTH, device="cuda", dtype=torch.bfloat16)
    expected = [model(rows) for model in models]
    device = torch.device("cuda", torch.cuda.current_device())
    parked = [ParkedWeights(model, device) for model in models]
    found = []
    for turn in range(8):
        follows = parked[(turn + 1) % 2]
        if way == "at once":
            follows.load()
        found.append(models[turn % 2](rows))
        parked[turn % 2].release()
        torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    for turn, output in enumerate(found):
        assert torch.equal(output, expected[turn % 2]), turn


def test_the_hosts_copy_is_pinned_and_the_device_is_left(group):
    model = _model(1)
    before = torch.cuda.memory_allocated()
    ParkedWeights(model, torch.device("cuda", torch.cuda.current_device()))
    assert all(parameter.to_local().is_pinned() for parameter in model.parameters())
    assert before - torch.cuda.memory_allocated() >= LAYERS * 2 * WIDTH**2


def _shards(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: local(weight).detach() for name, weight in model.state_dict(keep_vars=True).items()}


def test_shards_can_be_read_where_they_lie(group):
    model = _model(1)
    before = {name: part.cpu() for name, part in _shards(model).items()}
    parked = ParkedWeights(model, torch.device("cuda", torch.cuda.current_device()))
    for place in ("cpu", "cuda"):
        found = _shards(model)
        assert {part.device.type for part in found.values()} == {place}
        assert all(torch.equal(part.cpu(), before[name]) for name, part in found.items())
        parked.load()
