"""Refusals: incomplete, damaged or foreign checkpoints and impossible requests, each named in one block."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from tests.convert.checkpoints import STEP, Case

from opd.convert.__main__ import main

pytestmark = pytest.mark.slow
CASE = Case(tied=False, dtype="float32", world_size=2)
TIED = Case(tied=True, dtype="float32", world_size=1)


@pytest.fixture
def refuse(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Runs the command, expects the exit code, nothing written and the texts in one message; returns it."""

    def run(checkpoint: Path, *texts: str, options: tuple[str, ...] = (), code: int = 1) -> str:
        target = tmp_path / "target" / "model"
        capfd.readouterr()
        assert main([str(checkpoint), "--target", str(target), *options]) == code
        message = capfd.readouterr().err
        assert "Traceback" not in message
        for text in texts:
            assert text in message
        assert not target.parent.exists() or list(target.parent.iterdir()) == []
        return message

    return run


def _shard(step_dir: Path, rank: int = 1) -> Path:
    return step_dir / "actor" / f"model_world_size_2_rank_{rank}.pt"


@pytest.mark.parametrize(
    "name", ["model_world_size_2_rank_1.pt", "optim_world_size_2_rank_0.pt", "huggingface/tokenizer.json"]
)
def test_a_file_that_is_missing_is_named(sealed, refuse, name):
    step_dir = sealed(CASE)
    (step_dir / "actor" / name).unlink()
    refuse(step_dir, f"actor/{name} is missing", "cannot be converted")


def test_one_flipped_bit_is_found_before_anything_is_loaded(sealed, refuse):
    step_dir = sealed(CASE)
    data = bytearray(_shard(step_dir).read_bytes())
    data[len(data) // 2] ^= 1
    _shard(step_dir).write_bytes(data)
    message = refuse(step_dir, "actor/model_world_size_2_rank_1.pt does not have the manifest's sha256")
    assert "merging" not in message


class _Bomb:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_shard_that_would_run_code_is_not_unpickled(saved, sealed, refuse, tmp_path, is_sealed):
    step_dir = sealed(CASE) if is_sealed else Path(shutil.copytree(saved / CASE.name, tmp_path / "plain"))
    marker = tmp_path / "code-was-run"
    torch.save({"lm_head.weight": _Bomb(marker)}, _shard(step_dir))
    assert pickle.loads(pickle.dumps(_Bomb(tmp_path / "works"))) is None
    assert (tmp_path / "works").exists()
    refuse(
        step_dir,
        "the manifest says" if is_sealed else "cannot be loaded as plain weights",
        options=("--dtype", "checkpoint"),
    )
    assert not marker.exists()


def test_a_target_that_no_conversion_wrote_is_left_alone(sealed, tmp_path, capfd):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    for target in (tmp_path / "mine", tmp_path / "mine" / "notes.txt"):
        assert main([str(sealed(CASE)) if target.is_dir() else str(_step(tmp_path)), "--target", str(target)]) == 2
        assert f"target {target} exists" in capfd.readouterr().err
    assert (tmp_path / "mine" / "notes.txt").read_text() == "precious"


def _step(tmp_path: Path) -> Path:
    return tmp_path / "my-run" / "checkpoints" / f"global_step_{STEP}"


def test_a_checkpoint_whose_config_ties_what_was_trained_apart_is_refused(saved, tmp_path, refuse):
    # The stock merger drops the trained head without a word.
    plain = Path(shutil.copytree(saved / CASE.name, tmp_path / "plain"))
    config = plain / "actor" / "huggingface" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": True}))
    refuse(plain, "lm_head.weight", "differ", "tie_word_embeddings", options=("--dtype", "checkpoint"))


def test_weights_that_are_not_finite_are_named(saved, tmp_path, refuse):
    plain = Path(shutil.copytree(saved / TIED.name, tmp_path / "plain"))
    shard = plain / "actor" / "model_world_size_1_rank_0.pt"
    state = torch.load(shard, weights_only=True)
    state["model.norm.weight"]._local_tensor[3] = float("nan")
    torch.save(state, shard)
    refuse(plain, "model.norm.weight holds values that are not finite in the checkpoint", options=("--dtype", "bf16"))
