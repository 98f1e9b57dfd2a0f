"""Sizes from a config.json: parameters against the models themselves, activations against a hand count."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from opd.memory.shapes import Unplannable, read_shape, shape_of

SIZES = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES),
        Qwen2Config(**SIZES),
        Qwen3Config(**SIZES, head_dim=16),
        Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, mlp_only_layers=[]),
    ],
    ids=lambda config: config.model_type,
)
def test_parameters_are_those_of_the_model(config, tied):
    config.tie_word_embeddings = tied
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape_of(config.to_dict(), "m").num_params == sum(p.numel() for p in model.parameters())


EXPERT_MODEL = Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, mlp_only_layers=[])


@pytest.mark.parametrize(
    ("config", "modules"),
    [
        (Qwen2Config(**SIZES), ["all-linear"]),
        (Qwen3Config(**SIZES, head_dim=16), ["q_proj", "k_proj", "down_proj"]),
        (EXPERT_MODEL, ["q_proj", "v_proj", "o_proj"]),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_adapters_are_those_that_peft_puts_on_the_model(config, modules):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        asked = "all-linear" if modules == ["all-linear"] else modules
        adapted = get_peft_model(model, LoraConfig(r=5, target_modules=asked, task_type="CAUSAL_LM"))
    expected = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert shape_of(config.to_dict(), "m").adapter_params(5, modules) == expected > 0


def test_qwen3_8b_has_its_published_parameters():
    config = {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    }
    assert shape_of(config, "Qwen/Qwen3-8B").num_params == 8_190_735_360


def test_what_a_layer_keeps_a_token_is_the_sum_over_its_tensors():
    # 32 wide, 4 query and 2 key heads of 8, feed-forward 48, bf16. Norms: 2 x 32 entries of 4 + 2 + 2 bytes. Queries 32
    # and keys 16 rotated, values 16, keys and values repeated to 32 each, output 32: 160 entries of 2. Gate, activation,
    # other branch, product: 4 x 48 of 2.
    shape = shape_of(LlamaConfig(**SIZES).to_dict(), "m")
    assert shape.saved_bytes(2) == 64 * 8 + 160 * 2 + 192 * 2
    # Stream: 32 x (2 + 2 + 4); the feed-forward's 3 x 48 x 2 is more than attention's (2 x 32 + 2 x 16) x 2 + 4 x 32 is not.
    assert shape.transient_bytes(2) == 32 * 8 + max(96 * 2 + 128, 3 * 2 * 48)


def test_a_config_without_sizes_is_refused_by_its_name():
    with pytest.raises(Unplannable, match=r"odd/model: its config.json has no 'num_attention_heads'"):
        shape_of({"model_type": "mamba"}, "odd/model")


def test_only_the_config_of_a_folder_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LlamaConfig(**SIZES).to_dict()))
    assert read_shape(str(tmp_path)).layers == 3
    assert read_shape(tmp_path.as_uri()).layers == 3
    (tmp_path / "config.json").unlink()
    with pytest.raises(Unplannable, match=r"its config.json cannot be read"):
        read_shape(str(tmp_path))
