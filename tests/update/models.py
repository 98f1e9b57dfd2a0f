"""Tiny random Qwen3 folders for trainer tests, 61 real tokens in heads of 64 (student) and 96 (teacher) rows, and a batch."""

import random
from pathlib import Path
from typing import Any

import torch
from tests.update.workers import row
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

VOCAB = 61


def save_model(path: Path, *, hidden: int, layers: int, rows: int, tied: bool, seed: int, key_heads: int = 2) -> str:
    """Save a random model with a peaked enough output to make divergences worth comparing; return its path."""
    config = Qwen3Config(**_shape(hidden, layers, rows), num_key_value_heads=key_heads, tie_word_embeddings=tied)
    return _save(Qwen3ForCausalLM, config, path, seed)


def save_experts(path: Path, *, hidden: int, layers: int, rows: int, seed: int) -> str:
    """Save a random mixture of six experts in each layer, of which a token visits two; return its path."""
    experts = {"moe_intermediate_size": hidden, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}
    shape = _shape(hidden, layers, rows) | {"num_key_value_heads": 2, "tie_word_embeddings": False}
    return _save(Qwen3MoeForCausalLM, Qwen3MoeConfig(**shape, **experts), path, seed)


def _shape(hidden: int, layers: int, rows: int) -> dict[str, Any]:
    return {
        "vocab_size": rows, "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 256,
        "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip


def _save(kind: type, config: Any, path: Path, seed: int) -> str:
    torch.manual_seed(seed)
    model = kind(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(10.0)
        for name, parameter in model.named_parameters():
            # So that experts differ in what they do, and the router's choices are no near ties.
            if kind is Qwen3MoeForCausalLM and "mlp" in name:
                parameter.mul_(10.0)
    model.save_pretrained(path)
    save_tokenizer(path)
    return str(path)


def save_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t1"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="t0", unk_token="t1", eos_token="t2").save_pretrained(
        path
    )


def uneven_rows(count: int = 8, seed: int = 0) -> list[dict]:
    """Rows of uneven length; one with a masked (tool) span, one fully masked."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        prompt = [rng.randrange(3, VOCAB) for _ in range(rng.randint(3, 11))]
        response = [rng.randrange(3, VOCAB) for _ in range(rng.randint(2, 13))]
        mask = [1] * len(response)
        if i == 2:
            mask[1:] = [0] * (len(mask) - 1)
        if i == 5:
            mask = [0] * len(mask)
        rows.append(row(prompt, response, mask, weight=0.5 + i / 8))
    return rows
