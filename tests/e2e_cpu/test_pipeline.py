"""A pipeline that is killed between its stages and inside of one ends in the uninterrupted one's weights, bit for bit."""

from pathlib import Path

import pytest
from tests.e2e_cpu.runs import Outcome, finish, must_end_alike, run_and_kill, start

_TIMEOUT_S = 1200.0  # one pipeline
pytestmark = pytest.mark.timeout(4 * _TIMEOUT_S + 200)  # up to four
_STEPS = 3  # of the second stage, as in specs/pipeline.yaml


def _run(folder: Path) -> Outcome:
    return finish(start(folder, "pipeline"), folder, "pipeline", timeout_s=_TIMEOUT_S).must_be_clean()


def _stages(folder: Path) -> list[Path]:
    """Return the folders of the stages in the store, and on this disk."""
    return [folder / "out" / place / "stages" for place in ("store/pipeline", "pipeline")]


def _stage(outcome: Outcome, name: str) -> Outcome:
    folder = outcome.run_dir / "stages" / f"pipeline-{name}"
    return Outcome(returncode=outcome.returncode, output=outcome.output, run_dir=folder)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Its folder, and the attempt that ended it, after one that was killed between its stages and one inside the second."""
    folder = tmp_path_factory.mktemp("killed")
    store, local = _stages(folder)
    run_and_kill(store / "pipeline-warmup" / "result.json", folder, "pipeline", timeout_s=_TIMEOUT_S)
    assert not (local / "pipeline-distil").exists()
    sealed = local / "pipeline-distil" / "checkpoints" / "global_step_1" / "COMPLETE"
    run_and_kill(sealed, folder, "pipeline", timeout_s=_TIMEOUT_S)
    assert not (store / "pipeline-distil" / "result.json").exists()
    return folder, _run(folder)


@pytest.mark.slow
def test_after_a_kill_between_stages_and_one_inside_a_stage_it_goes_on_to_its_end(killed: tuple[Path, Outcome]) -> None:
    folder, ended = killed
    store, _ = _stages(folder)
    assert "run pipeline-warmup" not in ended.output, "what is finished is not run again"
    assert "resuming from step" in ended.output
    assert [path.name for path in (store / "pipeline-warmup" / "attempts").iterdir()] == ["0001"]
    assert len(_stage(ended, "distil").steps) == _STEPS


def test_it_ends_as_the_uninterrupted_pipeline_bit_for_bit(tmp_path: Path, killed: tuple[Path, Outcome]) -> None:
    (folder, ended), whole = killed, _run(tmp_path)
    assert ended.result["stages"] == whole.result["stages"]
    for mine, theirs in zip(_stage(ended, "distil").steps, _stage(whole, "distil").steps, strict=True):
        for key in ("training/global_step", "opd/loss", "opd/num_tokens", "opd/grad_norm"):
            assert mine[key] == theirs[key], key
    must_end_alike(_stage(ended, "distil"), _stage(whole, "distil"), _STEPS)
    began_with = "out/store/pipeline/stages/pipeline-warmup/checkpoints/global_step_1-huggingface/model.safetensors"
    assert (folder / began_with).read_bytes() == (tmp_path / began_with).read_bytes()
