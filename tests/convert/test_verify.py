"""The command's own check notices what it is there for."""

import json

import pytest
from safetensors.torch import load_file, save_file
from tests.convert.checkpoints import Case

from opd.convert.errors import ConvertError
from opd.convert.merger import ShardMerger
from opd.convert.pipeline import convert_checkpoint
from opd.convert.verify import verify
from opd.experiment.algorithm import Convert

pytestmark = pytest.mark.slow
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


def test_a_single_wrong_value_is_noticed(converted):
    folder, merger = converted
    state = load_file(folder / "model.safetensors")
    state["model.layers.1.mlp.up_proj.weight"][0, 0] += 1e-6
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConvertError, match=r"model.layers.1.mlp.up_proj.weight"):
        verify(folder, merger, merger.dtypes())


def test_a_weight_that_is_not_written_is_noticed(converted):
    folder, merger = converted
    state = load_file(folder / "model.safetensors")
    del state["model.norm.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConvertError, match=r"missing_keys.*model.norm.weight"):
        verify(folder, merger, merger.dtypes())


def test_a_config_that_makes_another_model_of_the_weights_is_noticed(converted):
    folder, merger = converted
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 0.25}))
    with pytest.raises(ConvertError, match="not the checkpoint's: rms_norm_eps differ"):
        verify(folder, merger, merger.dtypes())
