"""Weights that wait on the host, and the optimizer on shards, on real FSDP models; the cache of hidden states."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from tests.rank_end import leave
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from opd.update import teacher_cache as hidden_cache
from opd.update.engines import ShardedAdamW, StudentEngine, TeacherEngine, clip_gradients
from opd.update.parked import ParkedWeights
from opd.update.teacher_cache import HiddenCache

DEVICE = torch.device("cpu")
INPUT = torch.ones(2, 4)
STEPS, MOST = 3, 0.5


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


def _rank(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 2)).requires_grad_(False)
    expected = model(INPUT)
    mesh = distributed.init_device_mesh("cpu", (3,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    parked = ParkedWeights(model, DEVICE)
    for load in (parked.load, lambda: None):
        load()
        assert torch.equal(model(INPUT), expected)
        parked.release()
    shapes = [tuple(parameter.to_local().shape) for parameter in model.parameters()]
    assert shapes == [(1, 4), (1,), (0, 7), (0,)] or rank != 2
    distributed.barrier()  # no rank's sockets close while another still reads
    leave()


@pytest.mark.slow
def test_ranks_whose_shards_are_unequal_or_empty_gather_the_whole_weights(tmp_path):
    """Seven rows over three ranks are 3, 3 and 1, two are 1, 1 and 0: FSDP pads each to the largest."""
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=3)


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


def test_a_teacher_is_parked_once_and_unparked_when_it_shall_stay(model, monkeypatch):
    monkeypatch.setattr(TeacherEngine, "device", DEVICE)
    engine, seen = TeacherEngine.__new__(TeacherEngine), []
    engine.module = model
    for may_leave in (False, True, True, False):
        engine.set_offload(offload_params=may_leave)
        seen.append(engine.parked)
    assert seen == [None, seen[1], seen[1], None]
    assert seen[1] is not None


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


def test_sharded_updates_are_those_of_torch(group):
    mesh = distributed.init_device_mesh("cpu", (1,))
    expected, norms = _trained(torch.optim.AdamW, torch.nn.utils.clip_grad_norm_)
    found, found_norms = _trained(ShardedAdamW, clip_gradients, lambda tensor: distribute_tensor(tensor, mesh))
    assert found_norms == pytest.approx(norms, rel=1e-6)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its)


def test_gradients_of_next_to_nothing_stay_as_they_are():
    weight, gradient = nn.Parameter(torch.zeros(2)), torch.full((2,), 1e-7)
    weight.grad = gradient.clone()
    clip_gradients([weight], MOST)
    assert torch.equal(weight.grad, gradient)


def test_in_fp16_the_norm_is_of_gradients_without_their_scale():
    engine = StudentEngine.__new__(StudentEngine)
    engine.module, engine._qat_enabled = nn.Linear(1, 1, bias=False), False
    engine.optimizer, engine.scaler = torch.optim.SGD(engine.module.parameters()), torch.amp.GradScaler("cpu")
    engine.optimizer_config = SimpleNamespace(clip_grad=MOST)
    engine.scaler.scale(engine.module.weight.sum()).backward()
    assert engine.optimizer_step() == 1.0


@pytest.fixture
def cache() -> HiddenCache:
    return HiddenCache(device_gib=0.0, device=torch.device("cpu"))


def test_rows_come_back_in_the_order_asked_for_without_the_micro_batch_they_were_cut_from(cache):
    whole = torch.randn(100, 8)
    rows = dict(enumerate(whole[:10].split([1, 2, 3, 4])))
    for row, hidden in rows.items():
        cache.put(row, hidden)
    assert torch.equal(cache.fetch([2, 0, 3])(), torch.cat([rows[2], rows[0], rows[3]]))
    assert cache.fetch([2])().untyped_storage().nbytes() == 3 * 8 * 4
    assert (cache.device_bytes, cache.host_bytes) == (10 * 8 * 4, 0)


def test_pieces_of_pinned_memory_do_not_overlap_and_are_used_again(cache, monkeypatch):
    empty, slabs = torch.empty, []

    def not_pinned(size, *, dtype, pin_memory):
        slabs.append(empty(size, dtype=dtype))
        return slabs[-1]

    monkeypatch.setattr(hidden_cache, "SLAB_BYTES", 1024)
    monkeypatch.setattr(torch, "empty", not_pinned)
    for _ in range(2):
        pieces = [cache._pinned(torch.zeros(length, 8)) for length in (3, 16, 8, 100)]  # 96, 512, 256 and 3200 bytes
        for number, piece in enumerate(pieces):
            piece.fill_(number)
        assert [len(piece) for piece in pieces] == [3, 16, 8, 100]
        assert [piece.unique().tolist() for piece in pieces] == [[0.0], [1.0], [2.0], [3.0]]
        cache.clear()
    assert [len(slab) for slab in slabs] == [1024, 3200]
