"""Nothing in a checkpoint is unpickled, and all that verl really saves still loads."""

from __future__ import annotations

import inspect
import os
import pickle
import random
import subprocess
import sys
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


RANK = """
import sys
from pathlib import Path
import torch
from omegaconf import OmegaConf
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from opd.update.shards import ShardUploads

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
contents = ["model", "optimizer", "extra"]
model = torch.nn.Linear(1, 1)
manager = FSDPCheckpointManager(
    model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), lr_scheduler=None, processing_class=object(),
    checkpoint_config=OmegaConf.create({"save_contents": contents, "load_contents": contents}),
)

class VerlsWorker:
    def load_checkpoint(self, local_path, hdfs_path, del_local_after_load):
        manager.load_checkpoint(local_path, hdfs_path, del_local_after_load)

class Worker(ShardUploads, VerlsWorker):
    pass

for step in (2, 1):
    try:
        Worker().load_checkpoint(str(folder / f"global_step_{step}" / "actor"))
        print("loaded", step, model.weight.item(), flush=True)
    except Exception as error:
        print("failed", step, type(error).__name__, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_of_two_ranks_one_cannot_load_a_step_and_both_go_on_to_the_step_before(tmp_path):
    for step in (1, 2):
        actor = tmp_path / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        for rank in (0, 1):
            weights = {"weight": torch.full((1, 1), 10.0 * step + rank), "bias": torch.zeros(1)}
            optimizer = torch.optim.SGD([torch.nn.Parameter(value) for value in weights.values()], 0.1)
            extra = {"lr_scheduler": None, "rng": BaseCheckpointManager.get_rng_state()}
            if (step, rank) == (2, 1):
                del weights["bias"]  # whole and plain, and of another model
            parts = {"model": weights, "optim": optimizer.state_dict(), "extra_state": extra}
            for part, value in parts.items():
                torch.save(value, actor / f"{part}_world_size_2_rank_{rank}.pt")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=400)[0].splitlines()[-2:] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said == [["loaded 2 20.0", "loaded 1 10.0"], ["failed 2 RuntimeError", "loaded 1 11.0"]]
