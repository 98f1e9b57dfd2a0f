"""The place of the converted model shows the whole of it or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opd.convert.target import RECORD_FILE, choose_target


def _write(folder: Path, text: str) -> None:
    (folder / RECORD_FILE).write_text(text)
    (folder / "config.json").write_text(text)


def test_a_failure_leaves_an_earlier_model_as_it_was_and_nothing_beside_it(tmp_path):
    target = choose_target(str(tmp_path / "model"), "elsewhere")
    with target.staging() as folder:
        _write(folder, "first")
    with pytest.raises(RuntimeError), target.staging() as folder:  # noqa: PT012 - the block is what fails
        _write(folder, "second")
        raise RuntimeError
    assert (tmp_path / "model" / "config.json").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_conversion_left_is_removed_but_not_what_a_living_one_writes(tmp_path):
    script = """
import os, sys
from opd.convert.target import choose_target
with choose_target(sys.argv[1], "elsewhere").staging() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", script, str(tmp_path / "model")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        left = Path(other.stdout.readline().strip())
        with choose_target(str(tmp_path / "model"), "elsewhere").staging():
            assert left.exists()
    finally:
        other.kill()
        other.wait(30)
    assert left.exists()
    with choose_target(str(tmp_path / "model2"), "elsewhere").staging():
        assert left.exists(), "another target's"
    (tmp_path / "model").rmdir()
    with choose_target(str(tmp_path / "model"), "elsewhere").staging():
        assert not left.exists()
