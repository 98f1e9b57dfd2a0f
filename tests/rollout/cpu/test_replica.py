"""verl's configs translated to ours."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.rollout.cpu.tiny import tiny_model
from verl.workers.config import HFModelConfig, RolloutConfig

from opd.rollout.cpu import replica
from opd.rollout.cpu.engine import EngineConfig
from opd.rollout.cpu.replica import CPUServerAdapter, server_config

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


def test_weights_are_sent_in_pieces_of_whole_tensors_and_the_last_is_marked(monkeypatch):
    monkeypatch.setattr(replica, "_WEIGHT_PIECE_BYTES", 8)
    weights = [
        (name, torch.full((size,), float(size), requires_grad=True))
        for name, size in zip("abcd", (1, 1, 3, 1), strict=True)
    ]
    pieces = list(replica._pieces(weights))
    assert [(sorted(piece), last) for piece, last in pieces] == [(["a", "b"], False), (["c"], False), (["d"], True)]
    assert pieces[1][0]["c"].tolist() == [3.0] * 3
    assert not pieces[1][0]["c"].requires_grad
    assert [(len(piece), last) for piece, last in replica._pieces([])] == [(0, True)]


@pytest.mark.parametrize(("rank", "sent"), [("2", ["ab", "cd"]), ("3", [])])
def test_only_the_first_rank_of_a_server_sends_until_an_error_and_all_gather(model_folder, monkeypatch, rank, sent):
    async def load(piece, last, step):
        asked.append("".join(piece))
        if len(asked) == 2:
            raise ValueError("refused")

    asked, gathered = [], []
    server = SimpleNamespace(load_weights=SimpleNamespace(remote=load))
    monkeypatch.setattr(replica, "_WEIGHT_PIECE_BYTES", 8)
    monkeypatch.setattr(replica.ray, "get_actor", {replica.server_name(1): server}.__getitem__)
    monkeypatch.setenv("RANK", rank)  # of two servers' four
    adapter = CPUServerAdapter(rollout_config(tensor_model_parallel_size=2), HFModelConfig(path=model_folder), None)
    with pytest.raises(ValueError, match="refused") if sent else contextlib.nullcontext():
        asyncio.run(adapter.update_weights((name, gathered.append(name) or torch.zeros(1)) for name in "abcdef"))
    assert (adapter.replica_rank, asked, "".join(gathered)) == (1, sent, "abcdef")
