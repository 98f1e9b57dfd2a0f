"""Weights that wait on the host: where they are, and that a forward sees them; on real FSDP models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from opd.update.engines import TeacherEngine
from opd.update.parked import ParkedWeights

DEVICE = torch.device("cpu")
INPUT = torch.ones(2, 4)


@pytest.fixture
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


@pytest.fixture
def model(group) -> nn.Sequential:
    """[*, 4] -> [*, 3], of two units."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)).requires_grad_(False)
    mesh = distributed.init_device_mesh("cpu", (1,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _storages(model: nn.Module) -> list[torch.UntypedStorage]:
    return [parameter.to_local().untyped_storage() for parameter in model.parameters()]


def _addresses(model: nn.Module) -> set[int]:
    return {storage.data_ptr() for storage in _storages(model)}


def _zero(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.to_local().mul_(0)


def test_all_return_to_their_copies_on_the_host_and_give_the_rest_back(model):
    before = [storage._weak_ref() for storage in _storages(model)]
    parked = ParkedWeights(model, DEVICE)
    host = _addresses(model)
    parked.load()
    assert not host & _addresses(model)
    loaded = [storage._weak_ref() for storage in _storages(model)]
    parked.release()
    assert _addresses(model) == host
    assert all(torch.UntypedStorage._expired(storage) for storage in before + loaded)


def test_a_forward_sees_them_loaded_or_brings_them_itself(model):
    expected = model(INPUT)
    parked = ParkedWeights(model, DEVICE)
    host = _addresses(model)
    for load in (parked.load, parked.load, lambda: None):
        load()
        assert torch.equal(model(INPUT), expected)
        model.reshard()
        assert not host & _addresses(model)
        parked.release()


def test_what_is_written_on_the_device_is_forgotten_and_what_is_written_while_they_wait_comes_next(model):
    expected = model(INPUT)
    parked = ParkedWeights(model, DEVICE)
    parked.load()
    _zero(model)
    parked.release()
    parked.load()
    assert torch.equal(model(INPUT), expected)
    parked.release()
    _zero(model)
    parked.load()
    assert not model(INPUT).any()


def test_unparked_they_stay_and_no_host_memory_is_held(model):
    expected = model(INPUT)
    parked = ParkedWeights(model, DEVICE)
    host = _addresses(model)
    parked.unpark()
    assert not host & _addresses(model)
    assert torch.equal(model(INPUT), expected)
    assert not model[1]._forward_pre_hooks


RANK = """
import sys
from pathlib import Path
import torch
from torch import distributed, nn
from tests.rank_end import leave
from torch.distributed.fsdp import fully_shard
from opd.update.parked import ParkedWeights

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 2)).requires_grad_(False)
expected = model(torch.ones(2, 4))
mesh = distributed.init_device_mesh("cpu", (3,))
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
parked = ParkedWeights(model, torch.device("cpu"))
for way in ("at once", "as read"):
    if way == "at once":
        parked.load()
    assert torch.equal(model(torch.ones(2, 4)), expected), way
    parked.release()
print([tuple(parameter.to_local().shape) for parameter in model.parameters()])
distributed.barrier()  # no rank's sockets close while another still reads
leave()
"""


@pytest.mark.slow
def test_ranks_whose_shards_are_unequal_or_empty_gather_the_whole_weights(tmp_path):
    """Seven rows over three ranks are 3, 3 and 1, two are 1, 1 and 0: FSDP pads each to the largest."""
    commands = ([sys.executable, "-c", RANK, str(rank), str(tmp_path)] for rank in range(3))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, **pipes) for command in commands]
    ended = [(*process.communicate(timeout=300), process.returncode) for process in ranks]
    assert [code for _, _, code in ended] == [0, 0, 0], ended
    assert ended[2][0].strip() == "[(1, 4), (1,), (0, 7), (0,)]"


def test_a_head_that_stays_gathered_after_a_forward_outlives_the_other_weights(group):
    module = nn.Module()
    module.body, module.head = nn.Linear(4, 8), nn.Linear(8, 3)
    module.forward = lambda x: module.head(module.body(x))
    module.requires_grad_(False)
    mesh = distributed.init_device_mesh("cpu", (1,))
    for part in (module.head, module):  # verl wraps an untied head as a unit of its own
        fully_shard(part, mesh=mesh, reshard_after_forward=False)
    expected = module.head.weight.to_local().clone()
    engine = TeacherEngine.__new__(TeacherEngine)
    engine.module, engine.head = module, module.head
    engine.parked = ParkedWeights(module, DEVICE)
    engine.parked.load()
    module(INPUT)
    kept = engine.head_weight()
    engine.parked.release()
    assert kept.untyped_storage().size(), "its memory was let go"
    assert torch.equal(kept, expected)
