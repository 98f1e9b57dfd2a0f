"""Rollout servers: who gets which GPUs and files in an evaluation, and which server gets a request."""

from __future__ import annotations

import asyncio
import inspect
from typing import ClassVar

import pytest
from omegaconf import OmegaConf
from tests.minimal import MINIMAL
from verl.workers.rollout import router
from verl.workers.rollout.replica import RolloutMode

from opd.experiment import parse_tree
from opd.experiment.run_config import KEY, RunConfig, RunFacts
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
    monkeypatch.setattr(serving, "with_servers", lambda replica: replica)
    monkeypatch.setattr(_Replica, "launched", [])
    sizes = {"tensor_model_parallel_size": 2, "data_parallel_size": 1, "pipeline_model_parallel_size": 1}
    rollout = {"name": "vllm"} | sizes
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


@pytest.mark.parametrize(("more", "devices"), [({}, ["CPU"]), ({"teacher": {"path": "t", "url": "http://t:1/v1"}}, [])])
def test_servers_of_an_evaluation_read_the_models_files_unless_a_served_teacher_answers(
    config, monkeypatch, more, devices
):
    config.actor_rollout_ref.rollout.name = "cpu"
    spec = parse_tree({"kind": "eval", "model": {"path": "m"}} | more).spec
    config[KEY] = RunConfig(spec=spec, run=RunFacts(run_id="r", run_dir="r")).text()
    seen = []
    monkeypatch.setattr(serving, "start_cpu_servers", lambda of: seen.append(of) or {"cpu_server_0_0": None})
    assert serving.start_servers(config).devices == devices
    assert [of.actor_rollout_ref.rollout.load_format for of in seen] == ["auto"] * len(devices)


def test_a_run_with_vllm_has_no_cpu_servers(config):
    assert serving.start_cpu_servers(config) == {}


@pytest.mark.parametrize("keeps", [False, True])
def test_servers_keep_prefixes_where_the_run_says_so(config, monkeypatch, keeps):
    tree = MINIMAL["opd"] | {"rollout": {"schedule": "carry", "keep_prefixes": keeps, "free_cache_engine": False}}
    config[KEY] = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="r", run_dir="")).text()
    monkeypatch.setattr(serving, "with_servers", lambda replica, keeps_prefixes: keeps_prefixes)
    assert serving.Servers(config, worker_group=()).rollout_replica_class is keeps


def test_verl_still_starts_an_actor_to_count_requests():
    assert "ray.remote" in inspect.getsource(router._create_global_sticky_inflight)


def test_requests_go_to_the_least_busy_server_and_a_conversation_stays_where_it_began():
    client = serving.InProcessClient(config=None, servers={"a": 1, "b": 2})

    async def route() -> list[str]:
        names = [(await client._acquire_server(request))[0] for request in ("x", "y", "x")]
        client._release_server("a")
        client._release_server("a")
        return [*names, (await client._acquire_server("z"))[0], (await client._acquire_server("y"))[0]]

    assert asyncio.run(route()) == ["a", "b", "a", "a", "b"]


def test_a_row_finds_the_server_with_its_prefix_again_after_a_round_and_old_ones_are_forgotten(monkeypatch):
    monkeypatch.setattr(serving, "DEFAULT_ROUTING_CACHE_SIZE", 2)
    client = serving.InProcessClient(config=None, servers={"a": 1, "b": 2})

    async def rounds() -> list[list[str]]:
        seen = []
        for rows in (("x", "y"), ("y",), ("z", "x")):
            seen.append([(await client._acquire_server(row))[0] for row in rows])
            for name in seen[-1]:
                client._release_server(name)
        return seen

    assert asyncio.run(rounds()) == [["a", "b"], ["b"], ["a", "b"]]
