"""`opd.pods.stage` from a real S3 server: a folder of a claim holds what the URL names."""

from pathlib import Path

from opd.pods.stage import main
from opd.store.remote import open_store


def test_a_claim_is_filled_once_and_again_only_with_what_changed(s3_url: str, proxy, tmp_path: Path, capsys) -> None:
    store = open_store(s3_url)
    store.put("config.json", b"{}")
    store.put("sub/weights", b"x" * 1000)
    folder = tmp_path / "models" / "m"
    assert main([s3_url, "--to", str(folder)]) == 0
    assert (folder / "sub" / "weights").read_bytes() == b"x" * 1000
    assert f"{folder} holds 2 files of {s3_url}" in capsys.readouterr().out
    store.put("config.json", b'{"a": 1}')
    before = len(proxy.requests)
    assert main([s3_url, "--to", str(folder)]) == 0
    assert (folder / "config.json").read_bytes() == b'{"a": 1}'
    fetched = [path for method, path in proxy.requests[before:] if method == "GET" and "list-type" not in path]
    assert not [path for path in fetched if path.endswith("weights")]


def test_nothing_at_the_url_is_an_error(s3_url: str, tmp_path: Path) -> None:
    assert main([f"{s3_url}/nothing-here", "--to", str(tmp_path / "m")]) == 1
