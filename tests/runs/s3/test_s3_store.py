"""The store on a real S3 server over HTTP: races, large files and wrong credentials."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.s3.server import environment

from opd.errors import StoreRefused
from opd.store.base import RetryPolicy
from opd.store.remote import open_store

# The first test may have to build the server.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
QUICK = RetryPolicy(max_elapsed_s=5, first_wait_s=0.01, max_wait_s=0.1)

RACER = """
import sys, pathlib, time
from opd.errors import AlreadyExists
from opd.store.remote import open_store
root, go, name = sys.argv[1:]
store = open_store(root)
store.exists("warm-up")
pathlib.Path(f"{go}-{name}").touch()
while not pathlib.Path(go).exists():
    time.sleep(0.001)
start_s = pathlib.Path(go).stat().st_mtime + 0.1
for number in range(60):
    while time.time() < start_s + 0.03 * number:  # all of them at once: a server that checks, then writes, has two winners
        pass
    try:
        store.create(f"contest/{number}", name.encode())
        print("won", number, flush=True)
    except AlreadyExists:
        pass
"""


def test_objects_are_written_listed_and_deleted(s3_url: str, tmp_path: Path) -> None:
    store = open_store(s3_url)
    store.put("a/b/c", b"123")
    store.put("a/d", b"4")
    store.put("ab", b"5")
    assert store.get("a/b/c") == b"123"
    assert store.children("a") == ["b", "d"]
    assert store.children("") == ["a", "ab"]
    assert [(info.key, info.size) for info in store.list("a")] == [("a/b/c", 3), ("a/d", 1)]
    assert (store.exists("a/b/c"), store.exists("a/b"), store.exists("nothing")) == (True, False, False)
    store.get_file("a/d", tmp_path / "download")
    assert (tmp_path / "download").read_bytes() == b"4"
    assert store.child("a").get("d") == b"4"
    store.delete_tree("a")
    assert [info.key for info in store.list("")] == ["ab"]
    store.delete("ab")
    store.delete("ab")
    assert (store.children(""), store.list("nothing")) == ([], [])
    with pytest.raises(FileNotFoundError):
        store.get("ab")


def test_a_bucket_that_is_not_there_is_no_empty_store(s3_environment: dict[str, str], proxy) -> None:
    store = open_store("s3://buckt/runs", policy=QUICK)
    for call in (lambda: store.children(""), lambda: store.list(""), lambda: store.exists("run.json")):
        with pytest.raises(StoreRefused, match="bucket 'buckt' does not exist"):
            call()


def test_of_racing_processes_exactly_one_creates_each_key(
    s3_url: str, s3_server: int, tmp_path: Path, start_child: Callable, until: Callable
) -> None:
    straight = environment(s3_server)  # a proxy on the way would only blur who comes when
    racers = [start_child(RACER, s3_url, tmp_path / "go", f"racer-{n}", **straight) for n in range(4)]
    until(lambda: len(list(tmp_path.glob("go-*"))) == len(racers))
    (tmp_path / "go").touch()
    assert [racer.wait() for racer in racers] == [0] * len(racers)
    wins = {int(line.split()[1]): number for number, racer in enumerate(racers) for line in racer.text.splitlines()}
    assert sum(len(racer.text.splitlines()) for racer in racers) == len(wins) == 60
    store = open_store(s3_url)
    assert {n: store.get(f"contest/{n}") for n in range(60)} == {n: f"racer-{w}".encode() for n, w in wins.items()}


def test_a_wrong_secret_ends_at_once_in_one_clear_line(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, fresh_filesystem: Callable
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    fresh_filesystem()
    started = time.monotonic()
    with pytest.raises(StoreRefused, match="check the credentials in the environment") as refused:
        open_store(s3_url).put("key", b"")
    assert "\n" not in str(refused.value)
    assert "wrong" not in str(refused.value)
    assert time.monotonic() - started < 30


def test_a_file_larger_than_one_request_arrives_whole(s3_url: str, proxy, tmp_path: Path) -> None:
    block = bytes(range(256)) * 4096
    with open(tmp_path / "large", "wb") as file:
        for number in range(110):
            file.write(number.to_bytes(4, "little") + block[4:])
    store = open_store(s3_url)
    store.put_file("large", tmp_path / "large")
    assert any("uploadId" in path for _, path in proxy.requests)  # it went up in several parts
    store.get_file("large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "large").read_bytes()
