"""The command's own check notices what it is there for."""

import pytest
from safetensors.torch import load_file, save_file
from tests.convert.checkpoints import Case

from opd.convert.errors import ConvertError
from opd.convert.merger import ShardMerger
from opd.convert.pipeline import convert_checkpoint
from opd.convert.verify import make_prompts, verify
from opd.experiment.algorithm import Convert

CASE = Case(tied=False, dtype="float32", world_size=2)


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
def test_a_weight_that_is_not_written_is_noticed(converted):
    folder, merger = converted
    state = load_file(folder / "model.safetensors")
    del state["model.norm.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConvertError, match=r"missing_keys.*model.norm.weight"):
        verify(folder, merger, merger.dtypes())


def test_prompts_without_a_tokenizer_still_cover_the_embedding_and_are_the_same_each_time():
    class Config:
        vocab_size = 7
        max_position_embeddings = 20

    (row,) = make_prompts(None, Config)
    assert len(row) == 20
    assert set(row) <= set(range(7))
    assert make_prompts(None, Config) == [row]
