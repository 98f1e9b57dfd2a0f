"""Sizes from a config.json: parameters against the models themselves, activations against what autograd keeps."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from opd.shapes import Unplannable, read_shape, shape_of

SIZES = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
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


WIDE = {"hidden_size": 256, "intermediate_size": 768, "head_dim": 64, "vocab_size": 64}


def kept_by_autograd(config, layers, lora, num_tokens=64):
    """Bytes a token that a bf16 forward keeps for its backward, in addition to the weights."""
    config.num_hidden_layers = layers
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    backbone = model.model
    if lora:
        model = get_peft_model(model, LoraConfig(r=1, target_modules="all-linear"))
        model.enable_input_require_grads()
    model.to(torch.bfloat16)
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept, sizes = [], {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept.append(tensor)  # so that no later tensor has its address
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        backbone(input_ids=torch.zeros(1, num_tokens, dtype=torch.long), use_cache=False)
    return sum(sizes.values()) / num_tokens


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
def test_what_a_layer_keeps_a_token_is_what_autograd_keeps(kind, lora):
    config = kind(**SIZES | WIDE)
    found = kept_by_autograd(config, 2, lora) - kept_by_autograd(config, 1, lora)
    expected = shape_of(config.to_dict(), "m").saved_bytes(2, frozen=lora)
    # Beyond it: of each norm and head one number a token, and of each adapter.
    assert expected <= found <= 1.01 * expected


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
