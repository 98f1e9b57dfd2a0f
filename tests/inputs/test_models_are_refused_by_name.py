"""Models that cannot be distilled exactly: the check rejects them before training, with the reason."""

import pytest
import torch
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from opd.update.head import DistillationHead, check_head_is_plain


def _tiny(config_class, model_class, **extra):
    config = config_class(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, **extra,
    )  # fmt: skip
    torch.manual_seed(0)
    return model_class(config)


def test_a_model_that_caps_its_logits_is_refused_by_its_config_key():
    model = _tiny(Gemma2Config, Gemma2ForCausalLM, final_logit_softcapping=0.05)
    head = DistillationHead.replace(model)
    with pytest.raises(ValueError, match=r"teacher T: its logits are not hidden @ W\.T .*final_logit_softcapping"):
        check_head_is_plain(model, head, "teacher T", input_ids=torch.arange(4)[None])


def test_a_head_with_a_bias_is_refused():
    model = _tiny(Qwen3Config, Qwen3ForCausalLM)
    model.lm_head = nn.Linear(32, 64, bias=True)
    with pytest.raises(ValueError, match=r"Qwen3ForCausalLM\.lm_head has a bias"):
        DistillationHead.replace(model)
