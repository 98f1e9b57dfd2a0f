"""verl's configs translated to ours, and the server as a real Ray actor."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from tests.rollout.cpu.tiny import answer_one, make_engine, tiny_model
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from opd.compat.ray_start import patient_start
from opd.rollout.cpu.engine import EngineConfig
from opd.rollout.cpu.replica import CPURolloutReplica, CPUServerAdapter, server_config

NUM_TOKENS = 11
"""Length of the toy tokenizer."""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny Qwen3 with a tokenizer of eleven words, as a folder that transformers reads."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    model = tiny_model()
    model.generation_config.eos_token_id = [2, 3]
    model.save_pretrained(folder)
    words = {word: i for i, word in enumerate(["<pad>", "<unk>", "<end>", "<stop>", *"abcdefg"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    return str(folder)


def rollout_config(**changes: Any) -> RolloutConfig:
    settings: dict[str, Any] = {
        "name": "cpu",
        "dtype": "float32",
        "prompt_length": 16,
        "response_length": 8,
        "tensor_model_parallel_size": 1,
    }
    return RolloutConfig(**settings | changes)


def test_verls_configs_become_ours(model_folder):
    config = server_config(rollout_config(max_model_len=100, max_num_seqs=77), HFModelConfig(path=model_folder))
    ends = frozenset({2, 3})
    assert config.engine == EngineConfig(
        vocab_size=NUM_TOKENS, eos_token_ids=ends, max_model_len=100, response_length=8, max_num_seqs=77
    )
    assert (config.load_weights, config.script) == (False, None)  # load_format=dummy, verl's default


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "bfloat16"}, "set actor.dtype: fp32"),
        ({"engine_kwargs": {"cpu": {"scripts": 3}}}, "engine_kwargs.cpu has scripts; it knows script"),
        ({"max_model_len": 10**6}, "rollout.max_model_len=1000000 is above"),
    ],
)
def test_what_the_rollout_cannot_honour_is_refused_by_name(model_folder, changes, message):
    with pytest.raises(ValueError, match=message):
        server_config(rollout_config(**changes), HFModelConfig(path=model_folder))


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A Ray of this machine alone; its workers import the package from the source tree."""
    source = str(Path(__file__).parents[3] / "src")
    with patient_start():
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 << 20,
            runtime_env={"env_vars": {"PYTHONPATH": source, "VERL_USE_EXTERNAL_MODULES": "opd.compat.cpu"}},
            configure_logging=False,
        )
    yield
    ray.shutdown()


def launch(model_folder: str, replica_rank: int, **changes: Any) -> CPURolloutReplica:
    replica = CPURolloutReplica(replica_rank, rollout_config(**changes), HFModelConfig(path=model_folder), 1)
    node_id = ray.get_runtime_context().get_node_id()

    class Worker:
        """The place of verl's first worker, which is asked only for its node."""

        __ray_call__ = SimpleNamespace(remote=lambda function: asyncio.sleep(0, node_id))

    replica.workers = [Worker()]
    asyncio.run(replica.launch_servers())
    return replica


def adapter(model_folder: str, monkeypatch: pytest.MonkeyPatch, rank: int, **changes: Any) -> CPUServerAdapter:
    monkeypatch.setenv("RANK", str(rank))
    return CPUServerAdapter(rollout_config(**changes), HFModelConfig(path=model_folder), device_mesh=None)


@pytest.mark.slow
def test_a_trainer_syncs_its_weights_and_gets_answers_through_ray(local_ray, model_folder, monkeypatch):
    async def scenario(replica):
        server = replica.server_handle
        with pytest.raises(ray.exceptions.RayTaskError, match="the rollout has no weights"):
            await server.generate.remote([5, 6], {}, "early")
        trainer = adapter(model_folder, monkeypatch, rank=0)
        await trainer.resume(["weights"])
        await trainer.update_weights(iter(source.state_dict().items()), global_steps=4)
        await trainer.resume(["kv_cache"])
        outputs = await asyncio.gather(
            *[server.generate.remote([5, i % 11], {"seed": i, "logprobs": True}, f"r{i}") for i in range(40)]
        )
        await replica.sleep()
        await trainer.release()
        return outputs

    source = tiny_model(seed=3)
    outputs = asyncio.run(scenario(launch(model_folder, 0)))
    engine = make_engine(source, vocab_size=NUM_TOKENS, eos_token_ids=frozenset({2, 3}))
    for i, output in enumerate(outputs):
        assert isinstance(output, TokenOutput)
        expected = answer_one(engine, [5, i % 11], seed=i, max_tokens=8)
        assert (output.token_ids, output.log_probs) == (expected.token_ids, expected.logprobs)
        assert output.extra_fields == {"global_steps": 4, "num_cached_tokens": 0}


@pytest.mark.slow
def test_a_broken_sync_raises_at_the_sender_after_all_ranks_drew_everything(local_ray, model_folder, monkeypatch):
    drawn = []

    def weights(name_of_last: str) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tiny_model().state_dict().items():
            drawn.append(name)
            yield ("renamed" if name == name_of_last else name), tensor

    async def scenario():
        first, second = (adapter(model_folder, monkeypatch, rank, tensor_model_parallel_size=2) for rank in (2, 3))
        assert (first.replica_rank, second.replica_rank) == (1, 1)
        with pytest.raises(ValueError, match="no tensor 'renamed'"):
            await first.update_weights(weights("lm_head.weight"), global_steps=1)
        await second.update_weights(weights("lm_head.weight"), global_steps=1)

    monkeypatch.setattr("opd.rollout.cpu.replica._WEIGHT_PIECE_BYTES", 1)
    replica = launch(model_folder, 1)
    asyncio.run(asyncio.wait_for(scenario(), timeout=120))
    assert replica.server_address == "cpu_server_1_0"
    assert drawn == 2 * list(tiny_model().state_dict())
