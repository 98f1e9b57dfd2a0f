"""What cannot be distilled exactly is refused before training, with the reason."""

from __future__ import annotations

import pytest
import torch
from tests.worker.models import VOCAB, save_model
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from opd.inputs.tokenizers import shared_tokens
from opd.worker.head import DistillationHead, check_head_is_plain


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


def test_a_plain_head_passes_and_gives_the_logits_it_gave_before():
    model = _tiny(Qwen3Config, Qwen3ForCausalLM)
    inputs = torch.arange(4)[None]
    before = model(input_ids=inputs).logits
    head = DistillationHead.replace(model)
    check_head_is_plain(model, head, "student", input_ids=inputs)
    assert torch.equal(model(input_ids=inputs).logits, before)
    assert sorted(name for name, _ in model.named_parameters() if "lm_head" in name) == ["lm_head.weight"]


def test_a_head_with_a_bias_is_refused():
    model = _tiny(Qwen3Config, Qwen3ForCausalLM)
    model.lm_head = nn.Linear(32, 64, bias=True)
    with pytest.raises(ValueError, match=r"Qwen3ForCausalLM\.lm_head has a bias"):
        DistillationHead.replace(model)


def test_one_tokenizer_in_heads_of_different_size_counts_the_tokenizers_entries(tmp_path):
    # The original cannot handle padded vocabularies of different size (defect 12).
    student = save_model(tmp_path / "s", hidden=32, layers=1, rows=64, tied=True, seed=0)
    teacher = save_model(tmp_path / "t", hidden=32, layers=1, rows=96, tied=False, seed=1)
    assert shared_tokens(student, teacher) == (VOCAB, VOCAB, VOCAB)
