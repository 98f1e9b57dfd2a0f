"""The place of the converted model shows the whole of it or nothing."""

from pathlib import Path

import pytest

from opd.convert.target import RECORD_FILE, choose_target, staging


def _write(folder: Path, text: str) -> None:
    (folder / RECORD_FILE).write_text(text)
    (folder / "config.json").write_text(text)


def test_a_failure_leaves_an_earlier_model_as_it_was_and_nothing_beside_it(tmp_path):
    target = choose_target(str(tmp_path / "model"), "elsewhere")
    with staging(target) as folder:
        _write(folder, "first")
    with pytest.raises(RuntimeError), staging(target) as folder:  # noqa: PT012 - the block is what fails
        _write(folder, "second")
        raise RuntimeError
    assert (tmp_path / "model" / "config.json").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_rest_of_a_killed_conversion_is_removed(tmp_path):
    target, left = choose_target(str(tmp_path / "model"), "elsewhere"), tmp_path / ".model.part"
    left.mkdir()
    (left / "half.safetensors").touch()
    with staging(target) as folder:
        _write(folder, "whole")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", RECORD_FILE, "model"]
