"""Nothing in a checkpoint is unpickled, and all that verl really saves still loads."""

import inspect
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

from opd.compat.plain_loads import find_unloadable, plain_loads


class Malice:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_verl_still_unpickles_its_checkpoints():
    assert "weights_only=False" in inspect.getsource(FSDPCheckpointManager.load_checkpoint)


def test_verls_ranks_still_wait_for_each_other_behind_a_load():
    assert "torch.distributed.barrier()" in inspect.getsource(FSDPCheckpointManager.load_checkpoint)


def test_the_generators_of_a_rank_go_on_where_they_were_saved(tmp_path):
    state = BaseCheckpointManager.get_rng_state()
    torch.save({"rng": state}, tmp_path / "extra_state.pt")
    assert find_unloadable(tmp_path, ["extra_state.pt"]) == []
    before = [torch.rand(1).item(), np.random.rand(), random.random()]
    with plain_loads():
        extra = torch.load(tmp_path / "extra_state.pt", weights_only=False)
    BaseCheckpointManager.load_rng_state(extra["rng"])
    assert [torch.rand(1).item(), np.random.rand(), random.random()] == before
    BaseCheckpointManager.load_rng_state(state)


def test_a_file_that_would_run_code_is_refused_and_named(tmp_path):
    mark = tmp_path / "ran"
    torch.save({"state": Malice(mark)}, tmp_path / "data.pt")
    (problem,) = find_unloadable(tmp_path, ["data.pt"])
    assert problem.startswith("data.pt cannot be loaded as plain data: ")
    with plain_loads(), pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "data.pt", weights_only=False)
    assert not mark.exists()
    assert torch.load(tmp_path / "data.pt", weights_only=False)["state"] is None
    assert mark.exists(), "the pickle works, and outside of a load torch is itself again"


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", pickle.dumps({"plain": 1}), b"\x80\x02" + b"(" * 100_000, b"\x80\x02]q\x00."]
)
def test_a_file_that_torch_did_not_write_is_named(tmp_path, data):
    (tmp_path / "data.pt").write_bytes(data)
    assert find_unloadable(tmp_path, ["data.pt", "config.json"])[0].startswith("data.pt cannot be loaded")


def test_a_rank_that_fails_to_load_still_meets_the_others(monkeypatch):
    met = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: met.append("here"))
    with plain_loads():
        torch.distributed.barrier()  # verl's
        torch.distributed.barrier()
        assert met == []
    with pytest.raises(KeyError), plain_loads():
        raise KeyError("before verl's barrier")
    assert met == ["here", "here"], "once a load, whether it failed or not"
