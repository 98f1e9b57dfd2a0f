"""The command's own check notices what it is there for."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.convert.checkpoints import Case

from opd.config.algorithm import Convert
from opd.convert.errors import ConvertError
from opd.convert.merger import ShardMerger
from opd.convert.pipeline import convert_checkpoint
from opd.convert.verify import compare_logits, make_prompts, verify

CASE = Case(tied=False, dtype="float32", world_size=2)
LOGITS = [torch.tensor([[1.0, -50.0], [3.0, 4.0]])]


@pytest.fixture
def converted(sealed, tmp_path):
    """A converted folder and the merger of its checkpoint."""
    step_dir = sealed(CASE)
    convert_checkpoint(
        Convert(checkpoint=str(step_dir), target=str(tmp_path / "out"), dtype="checkpoint", verify=False)
    )
    actor = step_dir / "actor"
    merger = ShardMerger(actor, huggingface_dir=actor / "huggingface", world_size=2, trust_remote_code=False)
    return tmp_path / "out", merger


@pytest.mark.slow
def test_a_single_wrong_value_is_noticed(converted):
    folder, merger = converted
    state = load_file(folder / "model.safetensors")
    state["model.layers.1.mlp.up_proj.weight"][0, 0] += 1e-6
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConvertError, match=r"model.layers.1.mlp.up_proj.weight"):
        verify(folder, merger, merger.dtypes())


@pytest.mark.slow
def test_a_config_that_computes_something_else_is_noticed(converted):
    folder, merger = converted
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    with pytest.raises(ConvertError, match="logits differ"):
        verify(folder, merger, merger.dtypes())


@pytest.mark.slow
def test_a_weight_that_is_not_written_is_noticed(converted):
    folder, merger = converted
    state = load_file(folder / "model.safetensors")
    del state["model.norm.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConvertError, match=r"missing_keys.*model.norm.weight"):
        verify(folder, merger, merger.dtypes())


def test_the_difference_is_relative_to_the_largest_logit():
    assert compare_logits([LOGITS[0] + 4e-4], LOGITS, torch.float32) == pytest.approx(4e-4 / 50, rel=0.02)


@pytest.mark.parametrize("wrong", [1e-3, float("nan"), float("inf")])
def test_logits_beyond_the_tolerance_or_not_finite_are_refused(wrong):
    with pytest.raises(ConvertError, match="prompt 1"):
        compare_logits([LOGITS[0] + wrong], LOGITS, torch.float32)


def test_prompts_without_a_tokenizer_still_cover_the_embedding_and_are_the_same_each_time():
    class Config:
        vocab_size = 7
        max_position_embeddings = 20

    (row,) = make_prompts(None, Config)
    assert len(row) == 20
    assert set(row) <= set(range(7))
    assert make_prompts(None, Config) == [row]
