"""Models and data from a real S3 server: fetched once, verified, taken up again where a start broke off."""

from functools import partial
from pathlib import Path

import pytest

from opd.errors import StoreUnavailable
from opd.inputs import fetch
from opd.inputs.fetch import RECORD_FILE, NothingThere, local_copy
from opd.store.base import NO_RETRY
from opd.store.remote import open_store
from opd.store.transfer import in_threads

FILES = {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(256)) * 4000, "sub/extra.txt": b"x" * 10}


def upload(url: str, files: dict[str, bytes]) -> None:
    store = open_store(url)
    for name, data in files.items():
        store.put(name, data)


def held(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found.pop(RECORD_FILE, None)
    return found


def downloads(proxy) -> list[str]:
    """Names of the objects whose bytes were asked for."""
    return [path.rpartition("/")[2] for method, path in proxy.requests if method == "GET" and "list-type" not in path]


def test_an_interrupted_start_goes_on_file_by_file(s3_url: str, proxy, tmp_path: Path, monkeypatch) -> None:
    upload(s3_url, FILES)
    monkeypatch.setattr(fetch, "in_threads", partial(in_threads, num_threads=1))  # in the order of the names
    monkeypatch.setattr(fetch, "open_store", lambda url: open_store(url, policy=NO_RETRY))
    hashed = fetch.hash_file

    def cut_off(path: Path):
        proxy.is_away = True  # the first file has come, and the next one cannot
        return hashed(path)

    monkeypatch.setattr(fetch, "hash_file", cut_off)
    with pytest.raises(StoreUnavailable):
        local_copy(s3_url, cache=tmp_path)
    proxy.is_away = False
    monkeypatch.setattr(fetch, "hash_file", hashed)
    proxy.requests.clear()
    assert held(local_copy(s3_url, cache=tmp_path)) == FILES
    assert downloads(proxy) == ["model.safetensors", "extra.txt"], "config.json was whole"


def test_a_url_with_nothing_behind_it_is_named(s3_url: str, tmp_path: Path) -> None:
    for url in (f"{s3_url}/typo", "s3://no-such-bucket/typo"):
        with pytest.raises(NothingThere, match=f"{url}: there is nothing"):
            local_copy(url, cache=tmp_path)
