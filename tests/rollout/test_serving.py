"""Servers of an evaluation: who gets which GPUs, and that they read the model's files."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from omegaconf import OmegaConf
from verl.workers.rollout.replica import RolloutMode

from opd.rollout import serving


class _Replica:
    """verl's replica as far as its launch."""

    launched: ClassVar[list[_Replica]] = []

    def __init__(self, *, replica_rank, config, model_config, gpus_per_node):
        self.rank, self.config, self.gpus_per_node = replica_rank, config, gpus_per_node

    async def launch_servers(self):
        self.server_address, self.server_handle = f"server {self.rank}", f"handle {self.rank}"
        self.launched.append(self)


@pytest.fixture
def config(monkeypatch):
    monkeypatch.setattr(serving.RolloutReplicaRegistry, "get", lambda name: _Replica)
    monkeypatch.setattr(serving.vllm_servers, "with_servers", lambda replica, changes: replica)
    monkeypatch.setattr(_Replica, "launched", [])
    rollout = {
        "name": "vllm",
        "tensor_model_parallel_size": 2,
        "data_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
    }
    return OmegaConf.create(
        {"actor_rollout_ref": {"rollout": rollout, "model": {}}, "trainer": {"nnodes": 2, "n_gpus_per_node": 4}}
    )


def test_each_vllm_server_has_gpus_of_its_own_in_order_and_is_known_by_its_address(config):
    servers = asyncio.run(serving._launch_vllm(config, [f"place {number}" for number in range(8)]))
    assert servers == {f"server {rank}": f"handle {rank}" for rank in range(4)}
    assert [replica.workers for replica in sorted(_Replica.launched, key=lambda one: one.rank)] == [
        [f"place {2 * rank}", f"place {2 * rank + 1}"] for rank in range(4)
    ]
    assert {replica.rollout_mode for replica in _Replica.launched} == {RolloutMode.STANDALONE}


def test_servers_of_an_evaluation_read_the_models_files(config, monkeypatch):
    config.actor_rollout_ref.rollout.name = "cpu"
    seen = []
    monkeypatch.setattr(serving, "start_cpu_servers", lambda of: seen.append(of) or {"cpu_server_0_0": None})
    assert serving.start_servers(config).devices == ["CPU"]
    assert seen[0].actor_rollout_ref.rollout.load_format == "auto"
