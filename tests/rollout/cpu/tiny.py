"""Tiny random models and engines over them."""

from typing import Any, NamedTuple

import torch
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from opd.rollout.cpu.engine import EngineConfig, RolloutEngine
from opd.rollout.cpu.model import build_model
from opd.rollout.cpu.server import ServerConfig


class Answer(NamedTuple):
    """A request's answer."""

    token_ids: list[int]
    logprobs: list[float]


VOCAB = 41
PADDED_VOCAB = 48
LIMITS = {"vocab_size": VOCAB, "max_model_len": 4096, "response_length": 64}
ARCHITECTURES: dict[str, type[PreTrainedConfig]] = {"qwen3": Qwen3Config, "qwen2": Qwen2Config, "llama": LlamaConfig}


def tiny_config(architecture: str = "qwen3", tied: bool = False, **changes: Any) -> PreTrainedConfig:
    """Two layers, four heads over two key-value heads, 48 embedding rows of which 41 are tokens."""
    settings: dict[str, Any] = {
        "vocab_size": PADDED_VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return ARCHITECTURES[architecture](**settings | changes)


def tiny_model(architecture: str = "qwen3", tied: bool = False, seed: int = 0) -> torch.nn.Module:
    """Random weights large enough that tokens differ widely in probability."""
    model = build_model(tiny_config(architecture, tied), None)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return model


def make_engine(model: torch.nn.Module, **changes: Any) -> RolloutEngine:
    """Engine for the model; keywords change its config."""
    return RolloutEngine(model, EngineConfig(**LIMITS | changes))


def answer_all(engine: RolloutEngine) -> dict[str, Answer]:
    """Step until nothing is left; answers by request id."""
    answers: dict[str, Answer] = {}
    while engine.num_unfinished:
        answers |= {done.request_id: Answer(done.token_ids, done.logprobs) for done in engine.step()}
    return answers


def answer_one(engine: RolloutEngine, prompt: list[int], **params: Any) -> Answer:
    """Return the answer to one prompt alone."""
    engine.submit(prompt, params, "only")
    return answer_all(engine)["only"]


def server_config(**changes: Any) -> ServerConfig:
    """A server of the tiny Qwen3 that waits for weights."""
    settings: dict[str, Any] = {
        "engine": EngineConfig(**LIMITS),
        "hf_config": tiny_config(),
        "model_path": "",
        "load_weights": False,
    }
    return ServerConfig(**settings | changes)
