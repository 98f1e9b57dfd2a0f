"""Which precision each tensor is written in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from opd.convert.dtypes import BaseDtypes, plan_dtypes, read_base
from opd.convert.errors import ConvertError

STORED = {"weight": torch.float32, "gate.bias": torch.float32, "steps": torch.int64}


def _model(folder: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if tensors:
        save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_base_follows_single_tensors_and_else_the_config(tmp_path):
    # As DeepSeek-V3 has it: a gate's bias in fp32 within a model in bf16.
    folder = _model(tmp_path / "base", {"gate.bias": torch.zeros(2)}, dtype="bfloat16")
    plan = plan_dtypes("base", STORED, read_base(str(folder)))
    assert plan == STORED | {"weight": torch.bfloat16, "gate.bias": torch.float32}


def test_a_quantised_base_is_followed_by_its_config(tmp_path):
    weights = {"weight": torch.zeros(4).to(torch.float8_e4m3fn)}
    base = read_base(str(_model(tmp_path / "base", weights, dtype="bfloat16")))
    assert plan_dtypes("base", {"weight": torch.float32}, base) == {"weight": torch.bfloat16}


def test_a_base_that_says_nothing_is_refused_by_name():
    with pytest.raises(ConvertError, match=r"base model some/model says no dtype for weight"):
        plan_dtypes("base", STORED, BaseDtypes(name="some/model", default=None))


def test_a_model_in_the_hub_cache_is_read_without_a_network(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repo, commit = tmp_path / "models--some--model", "a" * 40
    _model(repo / "snapshots" / commit, {"weight": torch.zeros(2, dtype=torch.float16)}, dtype="bfloat16")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    base = read_base("some/model")
    assert (base.default, base.by_tensor) == (torch.bfloat16, {"weight": torch.float16})
    with pytest.raises(ConvertError, match=r"base model some/other cannot be read"):
        read_base("some/other")
