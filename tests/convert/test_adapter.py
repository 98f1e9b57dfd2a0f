"""The adapters of a LoRA checkpoint alone: merged into the base again, they make the converted model."""

from __future__ import annotations

import pytest
import torch
from tests.convert.checkpoints import LORA_CASES, base_model
from transformers import AutoModelForCausalLM

from opd.quickstart.adapter import merge, save


@pytest.mark.parametrize("case", LORA_CASES, ids=lambda case: case.name)
def test_saved_adapters_and_the_base_make_the_trained_model(saved, tmp_path, case):
    base = base_model(saved, case.tied)
    save(saved / case.name, tmp_path / "adapter")
    merge(base, tmp_path / "adapter", tmp_path / "model")
    expected = torch.load(saved / case.name / "full.pt")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).state_dict()
    start = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).state_dict()
    for name, value in found.items():
        if name in expected:
            torch.testing.assert_close(value, expected[name].float(), rtol=2e-2, atol=2e-3, msg=name)
    trained = found["model.layers.0.self_attn.q_proj.weight"]
    assert not torch.allclose(trained, start["model.layers.0.self_attn.q_proj.weight"], atol=1e-3)
