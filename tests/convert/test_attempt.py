"""Kind convert as a run: claimed, finished once."""

import json
from pathlib import Path

import pytest
from tests.convert.checkpoints import Case

from opd import convert
from opd.convert import run
from opd.experiment.load import load_text

pytestmark = pytest.mark.slow
CASE = Case(tied=False, dtype="float32", world_size=2)


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """Return the lines of a conversion about its end."""
    found: list[str] = []
    monkeypatch.setattr(convert, "say", found.append)
    return found


def _spec(tmp_path: Path, checkpoint: Path, **convert: str):
    text = json.dumps(
        {
            "kind": "convert",
            "name": "to-hf",
            "convert": {"checkpoint": str(checkpoint), **convert},
            "output": {"root": str(tmp_path / "out")},
            "store": {"url": str(tmp_path / "store")},
        }
    )
    return load_text(text, is_json=True).spec


def test_a_second_start_finds_the_work_done_unless_it_is_gone_or_wanted_elsewhere(sealed, tmp_path, said):
    step_dir = sealed(CASE)
    spec = _spec(tmp_path, step_dir)
    assert run(spec) == 0
    assert run(spec) == 0
    assert "finished in attempt 1" in said[0]
    assert run(_spec(tmp_path, step_dir, target=str(tmp_path / "b"))) == 1
    assert f"wanted now is {tmp_path / 'b'}" in said[-1]
    (Path(f"{step_dir}-huggingface") / "config.json").unlink()
    assert run(spec) == 1


def test_an_incomplete_checkpoint_ends_the_attempt_but_not_the_run(sealed, tmp_path, said):
    step_dir = sealed(CASE)
    complete = (step_dir / "COMPLETE").read_bytes()
    (step_dir / "COMPLETE").unlink()
    spec = _spec(tmp_path, step_dir)
    assert run(spec) == 1
    assert "global_step_7 cannot be converted:\n  - it has no COMPLETE" in said[0]
    (step_dir / "COMPLETE").write_bytes(complete)
    assert run(spec) == 0
    assert sorted(path.name for path in (tmp_path / "store" / "to-hf" / "attempts").iterdir()) == ["0001", "0002"]
