"""Compiled code is kept next to fetched models, and what the environment says stays."""

import os

import pytest

from opd.trainer.processes import COMPILERS, keep_compiled


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    for name in COMPILERS:
        monkeypatch.setenv(name, "")  # so that what is set below is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPD_CACHE_DIR", str(tmp_path / "cache"))


def test_every_compiler_has_a_folder_on_the_runs_volume(tmp_path):
    assert keep_compiled() == tmp_path / "cache/compiled"
    assert {name: os.environ[name] for name in COMPILERS} == {
        name: str(tmp_path / "cache/compiled" / folder) for name, folder in COMPILERS.items()
    }


def test_a_volume_that_cannot_be_written_leaves_every_compiler_its_default(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPD_CACHE_DIR", str(tmp_path / "file"))
    assert keep_compiled() is None
    assert not COMPILERS.keys() & os.environ.keys()
