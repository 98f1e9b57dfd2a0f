"""The cache of fetched models: what has rotted in it is noticed, what damaged its record is mended (S3: tests/runs/s3)."""

from pathlib import Path

import pytest
from tests.runs.files import flip_a_bit

from opd.inputs.fetch import RECORD_FILE, FetchError, local_copy, mirror
from opd.store.base import ObjectInfo
from opd.store.local import LocalStore

FILES = {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(256)) * 400, "onnx/model.onnx": b"x" * 10}


@pytest.fixture
def url(tmp_path: Path) -> str:
    store = LocalStore(tmp_path / "bucket")
    for name, data in FILES.items():
        store.put(name, data)
    return str(store.root)


def held(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name != RECORD_FILE}


def test_a_bit_that_flipped_in_the_cache_is_noticed_and_its_file_fetched_anew(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = local_copy(url, cache=tmp_path / "cache")
    flip_a_bit(Path(folder) / "model.safetensors")
    untouched = (Path(folder) / "config.json").stat().st_ino
    capsys.readouterr()
    assert local_copy(url, cache=tmp_path / "cache") == folder
    assert held(folder) == FILES
    damaged, fetched = capsys.readouterr().out.splitlines()
    assert "model.safetensors does not have the manifest's sha256" in damaged
    assert "1 files" in fetched
    assert (Path(folder) / "config.json").stat().st_ino == untouched
    local_copy(url, cache=tmp_path / "cache")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "damage",
    [b"", b"\x00" * 40, b"[]", b"{}", b'{"files": []}', b'{"files": {"a": {"size": 1}}}', b'{"files": {"a": 7}}'],
)
def test_a_damaged_record_costs_a_download_and_no_start(
    url: str, tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = local_copy(url, cache=tmp_path / "cache")
    (Path(folder) / RECORD_FILE).write_bytes(damage)
    capsys.readouterr()
    assert local_copy(url, cache=tmp_path / "cache") == folder
    assert held(folder) == FILES
    said = capsys.readouterr().out.splitlines()
    assert "3 files" in said[-1]
    assert damage == b"{}" or f"{RECORD_FILE} is damaged" in said[0]


class Hostile(LocalStore):
    """A service whose listing names objects outside the folder they are fetched into."""

    name = "../outside"

    def _list(self, prefix: str) -> list[ObjectInfo]:
        return [*super()._list(prefix), ObjectInfo(key=self.name, size=4, modified_s=0.0)]

    def _get_file(self, key: str, path: Path) -> None:
        path.write_bytes(b"evil") if key == self.name else super()._get_file(key, path)


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/tmp/outside", "..", "a/.."])
def test_an_object_name_that_leads_out_of_the_folder_is_refused_before_anything_is_fetched(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Hostile, "name", name)
    monkeypatch.setattr("opd.inputs.fetch.open_store", lambda url: Hostile(Path(url)))
    with pytest.raises(FetchError, match="lead out of the folder"):
        mirror(url, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "outside").exists()
