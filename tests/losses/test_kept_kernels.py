"""A compiled kernel is made once for its key, and kept where a folder is named."""

import pytest

from opd.losses.hopper.nvrtc import CACHE_VARIABLE, kept


@pytest.fixture
def made():
    return []


def _make(made: list[bytes], code: bytes = b"code") -> bytes:
    made.append(code)
    return code


def test_a_second_process_finds_what_the_first_made(monkeypatch, tmp_path, made):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kernels"))
    assert [kept(b"key", lambda: _make(made)) for _ in range(2)] == [b"code"] * 2
    assert made == [b"code"]
    assert [path.suffix for path in (tmp_path / "kernels").iterdir()] == [".cubin"]


def test_another_key_is_another_kernel(monkeypatch, tmp_path, made):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    kept(b"key", lambda: _make(made))
    assert kept(b"other", lambda: _make(made, b"else")) == b"else"
    assert len(made) == 2


def test_without_a_folder_or_with_one_that_cannot_be_written_it_is_made_each_time(monkeypatch, tmp_path, made):
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    kept(b"key", lambda: _make(made))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    assert kept(b"key", lambda: _make(made)) == b"code"
    assert len(made) == 2
