"""`opd.pods.stage` from a real S3 server: a folder of a claim holds what the URL names, and says so last."""

import json
from pathlib import Path

from opd.pods.stage import RECORD_FILE, main
from opd.store.remote import open_store


def test_a_claim_is_filled_once_and_again_only_with_what_changed(s3_url: str, proxy, tmp_path: Path) -> None:
    store = open_store(s3_url)
    store.put("config.json", b"{}")
    store.put("sub/weights", b"x" * 1000)
    folder = tmp_path / "models" / "m"
    assert main([s3_url, "--to", str(folder)]) == 0
    assert (folder / "sub" / "weights").read_bytes() == b"x" * 1000
    assert json.loads((folder / RECORD_FILE).read_text()) == {"source": s3_url, "num_files": 2}
    store.put("config.json", b'{"a": 1}')
    before = len(proxy.requests)
    assert main([s3_url, "--to", str(folder)]) == 0
    assert (folder / "config.json").read_bytes() == b'{"a": 1}'
    fetched = [path for method, path in proxy.requests[before:] if method == "GET" and "list-type" not in path]
    assert not [path for path in fetched if path.endswith("weights")]


def test_nothing_at_the_url_is_an_error_and_leaves_no_record(s3_url: str, tmp_path: Path) -> None:
    assert main([f"{s3_url}/nothing-here", "--to", str(tmp_path / "m")]) == 1
    assert not (tmp_path / "m" / RECORD_FILE).exists()
