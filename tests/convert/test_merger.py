"""The merger where verl's own goes wrong."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.convert.checkpoints import LORA_CASES, Case, full_weights

from opd.convert.errors import ConvertError
from opd.convert.merger import ShardMerger

pytestmark = pytest.mark.slow
CASE = Case(tied=False, dtype="float32", world_size=2)


@pytest.fixture
def actor(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved / CASE.name / "actor", tmp_path / "actor"))


def _edit(actor: Path, rank: int, **tensors: torch.Tensor) -> None:
    path = actor / f"model_world_size_2_rank_{rank}.pt"
    torch.save({**torch.load(path, weights_only=True), **tensors}, path)


def _open(actor: Path) -> ShardMerger:
    return ShardMerger(actor, huggingface_dir=actor / "huggingface", world_size=2, trust_remote_code=False)


def test_each_tensor_is_whole_and_keeps_its_dtype(saved, actor):
    # verl's merger gives bf16.
    merger = _open(actor)
    full = full_weights(saved, CASE)
    assert merger.names() == sorted(full)
    for name, value in full.items():
        assert merger.tensor(name).dtype == torch.float32
        assert torch.equal(merger.tensor(name), value), name


def test_a_replicated_tensor_that_differs_between_ranks_is_refused(actor):
    for rank in range(2):
        _edit(actor, rank, a_buffer=torch.tensor(rank))
    with pytest.raises(ConvertError, match="a_buffer"):
        _open(actor).tensor("a_buffer")


def test_parts_that_do_not_make_up_the_tensor_are_refused(actor):
    other = torch.load(actor / "model_world_size_2_rank_0.pt", weights_only=True)
    _edit(actor, 1, **{"lm_head.weight": other["lm_head.weight"]})  # 34 + 34 rows of 67
    with pytest.raises(ConvertError, match=r"lm_head.weight: the ranks' parts make \(68, 64\), stored was \(67, 64\)"):
        _open(actor).tensor("lm_head.weight")


def test_ranks_with_different_names_are_refused(actor):
    _edit(actor, 1, extra=torch.zeros(1))
    with pytest.raises(ConvertError, match=r"ranks 0 and 1 hold different tensors: .*extra"):
        _open(actor)


def test_a_lora_student_without_its_scale_is_refused_by_name(saved, tmp_path):
    actor = Path(shutil.copytree(saved / LORA_CASES[0].name / "actor", tmp_path / "actor"))
    (actor / "lora_train_meta.json").write_text('{"r": 0, "lora_alpha": 1}')
    with pytest.raises(ConvertError, match=r"the LoRA student in .* cannot be merged"):
        _open(actor)
    (actor / "lora_train_meta.json").unlink()
    with pytest.raises(ConvertError, match=r"lora_train_meta.json is missing: it says the scale"):
        _open(actor)
