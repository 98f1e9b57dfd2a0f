"""Tiny Qwen3 models, and the shapes of the two toy models: a teacher and a narrower student, both Qwen3 and both with an untied head."""

from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

HEAD_DIM = 32
INITIALIZER_RANGE = 0.05
"""Wider than Qwen3's 0.02, with which nets as narrow as these stay on the first plateau for longer."""


def build_tiny_qwen3(
    tokenizer: PreTrainedTokenizerBase,
    *,
    num_layers: int,
    hidden_size: int,
    num_vocab_rows: int,
    max_position_embeddings: int,
    seed: int,
) -> Qwen3ForCausalLM:
    """Return a freshly initialised fp32 model, hidden_size // HEAD_DIM heads, whose generation stops at the tokenizer's eos.

    Args:
        num_vocab_rows: rows of embedding and head, at least as many as the tokenizer has tokens.
        max_position_embeddings: tokens of the longest sequence.
        seed: of the weights; sets torch's global generator.
    """
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = Qwen3Config(
        vocab_size=num_vocab_rows,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // HEAD_DIM,
        num_key_value_heads=hidden_size // HEAD_DIM,
        head_dim=HEAD_DIM,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=False,
        initializer_range=INITIALIZER_RANGE,
        **special,
    )
    torch.manual_seed(seed)
    model: Qwen3ForCausalLM = Qwen3ForCausalLM(config).float()
    model.generation_config = GenerationConfig(do_sample=False, **special)
    return model


@dataclass(frozen=True, kw_only=True)
class ToyShape:
    """The sizes in which the toy models differ."""

    num_layers: int
    hidden_size: int
    num_vocab_rows: int
    """Rows of embedding and head: at least the tokenizer's 112. Teacher and student differ on purpose, as Qwen's
    sizes do, so that unequal padded vocabularies are met for real."""
    dtype: torch.dtype
    """Of the saved weights. The student trains in fp32: rounding it to bf16 would cost accuracy."""


TEACHER = ToyShape(num_layers=3, hidden_size=128, num_vocab_rows=128, dtype=torch.bfloat16)
STUDENT = ToyShape(num_layers=3, hidden_size=64, num_vocab_rows=112, dtype=torch.float32)
