"""Weights that wait on the host: where they lie, that a forward sees them, and what the copy costs in bytes; on a real FSDP model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.update.models import VOCAB, save_model
from tests.update.workers import Case, row, run_cases
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from opd.update.engines import TeacherEngine
from opd.update.parked import ParkedWeights

DEVICE = torch.device("cpu")


@pytest.fixture
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


def _model() -> nn.Sequential:
    """Return a model [*, 4] -> [*, 3] of two units."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)).requires_grad_(False)
    mesh = distributed.init_device_mesh("cpu", (1,))
    for layer in model[:-1]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _addresses(model: nn.Module) -> set[int]:
    """Of the memory that the parameters' shards lie in."""
    return {parameter.to_local().untyped_storage().data_ptr() for parameter in model.parameters()}


def _is_loaded(model: nn.Module, host: set[int]) -> bool:
    """Whether nothing of it lies in the host's copy, which is at these addresses."""
    return not host & _addresses(model)


class TestParkedWeights:
    @pytest.fixture
    def model(self, group) -> nn.Sequential:
        return _model()

    @pytest.fixture
    def expected(self, model) -> torch.Tensor:
        return model(torch.ones(2, 4))

    def test_all_lie_in_one_buffer_of_the_host_and_return_to_it(self, model, expected):
        parked = ParkedWeights(model, DEVICE)
        [host] = _addresses(model)
        parked.load()
        assert host not in _addresses(model)
        parked.release()
        assert _addresses(model) == {host}

    def test_what_they_lay_in_before_is_given_back(self, model):
        before = [parameter.to_local().untyped_storage()._weak_ref() for parameter in model.parameters()]
        parked = ParkedWeights(model, DEVICE)
        parked.load()
        loaded = [parameter.to_local().untyped_storage()._weak_ref() for parameter in model.parameters()]
        parked.release()
        assert all(torch.UntypedStorage._expired(storage) for storage in before + loaded)

    def test_a_forward_sees_them_while_they_are_loaded(self, model, expected):
        parked = ParkedWeights(model, DEVICE)
        for _ in range(2):
            parked.load()
            assert torch.equal(model(torch.ones(2, 4)), expected)
            parked.release()

    def test_they_come_as_a_forward_needs_them(self, model, expected):
        ParkedWeights(model, DEVICE)
        host = _addresses(model)
        assert torch.equal(model(torch.ones(2, 4)), expected)
        model.reshard()
        assert _is_loaded(model, host)

    def test_what_is_written_while_they_wait_is_what_comes_next(self, model, expected):
        parked = ParkedWeights(model, DEVICE)
        parked.load()
        model(torch.ones(2, 4))
        parked.release()
        for parameter in model.parameters():
            parameter.to_local().mul_(0)
        parked.load()
        assert not model(torch.ones(2, 4)).any()

    def test_what_is_written_on_the_device_is_forgotten(self, model, expected):
        parked = ParkedWeights(model, DEVICE)
        parked.load()
        for parameter in model.parameters():
            parameter.to_local().mul_(0)
        parked.release()
        parked.load()
        assert torch.equal(model(torch.ones(2, 4)), expected)

    def test_unparked_they_stay_and_no_host_memory_is_held(self, model, expected):
        parked = ParkedWeights(model, DEVICE)
        [host] = _addresses(model)
        parked.unpark()
        assert host not in _addresses(model)
        assert torch.equal(model(torch.ones(2, 4)), expected)
        assert not any(part._forward_pre_hooks for part in (model[1],))


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
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]  # fmt: skip
    ended = [(*process.communicate(timeout=300), process.returncode) for process in ranks]
    assert [code for _, _, code in ended] == [0, 0, 0], ended
    assert ended[2][0].strip() == "[(1, 4), (1,), (0, 7), (0,)]"


@pytest.fixture(scope="module")
def routed(tmp_path_factory) -> dict[str, dict]:
    """Three teachers of one row each and a fourth without any, by whether they wait on the host."""
    base: Path = tmp_path_factory.mktemp("models")
    student = save_model(base / "student", hidden=32, layers=2, rows=64, tied=False, seed=1)
    teachers = {
        name: save_model(base / name, hidden=48, layers=2, rows=96, tied=name == "b", seed=seed)
        for seed, name in enumerate("abcd", start=2)
    }
    rows = [
        row([5, 6, 7 + n], [(n * 7 + k) % (VOCAB - 3) + 3 for k in range(6)]) | {"teacher": n % 3} for n in range(4)
    ]
    cases = {
        where: Case(
            student=student, teacher="", teachers=teachers, rows=rows, micro_batch=1, num_steps=2,
            sets=[f"teachers.{name}.offload={where}" for name in teachers],
        )
        for where in ("true", "false")
    }  # fmt: skip
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestTeachers:
    def test_they_teach_the_same_wherever_they_wait(self, routed):
        for name, weight in routed["false"]["weights"].items():
            assert torch.equal(weight, routed["true"]["weights"][name]), name


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
    module(torch.ones(2, 4))
    kept = engine.head_weight()
    engine.parked.release()
    assert kept.untyped_storage().size(), "its memory was let go"
    assert torch.equal(kept, expected)
