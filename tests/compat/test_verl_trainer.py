"""Each replacement of a name in verl's trainer is still needed: these fail when verl offers what they provide."""

from __future__ import annotations

import asyncio
import inspect

import pytest
import verl
from verl.trainer.ppo.v1 import trainer_base
from verl.workers.rollout import router

from opd.compat import verl_trainer


def test_the_patches_are_written_for_this_version_of_verl():
    assert verl.__version__ == "0.9.1", "read opd/compat/verl_trainer.py again before allowing another version"


def test_verl_still_starts_an_actor_to_count_requests():
    source = inspect.getsource(router._create_global_sticky_inflight)
    assert "ray.remote" in source
    assert "LLMServerManager.create(" in inspect.getsource(trainer_base.PPOTrainer._setup)


def test_verl_still_prints_dictionaries_from_fit():
    assert "pprint(" in inspect.getsource(trainer_base.PPOTrainer.fit)


def test_verl_still_gives_its_worker_group_no_port_to_meet_at():
    source = inspect.getsource(trainer_base.PPOTrainer._setup)
    assert "RayWorkerGroup(" in source
    assert "master_port" not in source


def test_verl_still_counts_the_training_data_in_the_call_that_makes_it():
    source = inspect.getsource(trainer_base.PPOTrainer._init_dataloader)
    assert source.index("self.train_dataset = create_rl_dataset(") < source.index("len(self.train_dataset)")
    assert "is_train=True" in source


def test_verl_still_gives_both_data_sets_one_config():
    source = inspect.getsource(trainer_base.PPOTrainer._init_dataloader)
    assert source.count("create_rl_dataset(") == source.count("            self.config.data,\n") == 2


def test_the_ranks_meet_at_the_port_of_the_spec():
    with verl_trainer.rendezvous_at(29501):
        assert trainer_base.RayWorkerGroup.keywords == {"master_port_range": [29501, 29502]}


def test_names_are_put_back_when_the_call_ends_also_by_an_error():
    before = trainer_base.pprint
    replaced = []

    def fail():
        with verl_trainer.quiet():
            replaced.append(trainer_base.pprint is not before)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert replaced == [True]
    assert trainer_base.pprint is before


def test_requests_go_to_the_least_busy_server_and_a_conversation_stays_where_it_began():
    client = verl_trainer.InProcessClient(config=None, servers={"a": 1, "b": 2})

    async def route() -> list[str]:
        names = [(await client._acquire_server(request))[0] for request in ("x", "y", "x")]
        client._release_server("a")
        client._release_server("a")
        return [*names, (await client._acquire_server("z"))[0], (await client._acquire_server("y"))[0]]

    assert asyncio.run(route()) == ["a", "b", "a", "a", "b"]


def test_a_row_finds_the_server_with_its_prefix_again_after_a_round_and_old_ones_are_forgotten(monkeypatch):
    monkeypatch.setattr(verl_trainer, "DEFAULT_ROUTING_CACHE_SIZE", 2)
    client = verl_trainer.InProcessClient(config=None, servers={"a": 1, "b": 2})

    async def rounds() -> list[list[str]]:
        seen = []
        for rows in (("x", "y"), ("y",), ("z", "x")):
            seen.append([(await client._acquire_server(row))[0] for row in rows])
            for name in seen[-1]:
                client._release_server(name)
        return seen

    assert asyncio.run(rounds()) == [["a", "b"], ["b"], ["a", "b"]]


def test_verl_sets_up_in_the_order_in_which_a_start_is_told():
    source = inspect.getsource(trainer_base.PPOTrainer._setup)
    calls = [
        "RayWorkerGroup(",
        "init_model()",
        "RewardLoopManager(",
        "LLMServerManager.create(",
        "CheckpointEngineManager(",
    ]
    assert [source.index(call) for call in calls] == sorted(source.index(call) for call in calls)


def test_a_start_is_told_part_by_part(monkeypatch):
    for name in ("RayWorkerGroup", "RewardLoopManager", "CheckpointEngineManager"):
        monkeypatch.setattr(trainer_base, name, lambda: None)
    parts = []
    with verl_trainer.told(parts.append):
        for name in ("RayWorkerGroup", "RewardLoopManager", "CheckpointEngineManager"):
            getattr(trainer_base, name)()
    assert parts == ["tokenizer and data", "worker processes", "models", "rollout server"]
