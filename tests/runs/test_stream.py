"""Streaming: the stored parts are always a prefix of the file, at a bounded cost, whatever the store does meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opd.errors import StoreUnavailable
from opd.runs.stream import FileMirror, Streamer, part_keys, read_streamed, upload_leftovers
from opd.store.base import RetryPolicy
from opd.store.local import LocalStore

POLICY = RetryPolicy(max_elapsed_s=0.0)


class CountingStore(LocalStore):
    """A real folder that notes its puts and refuses those that the test lists."""

    def __init__(self, root: Path, *, policy: RetryPolicy = POLICY):
        super().__init__(root, policy=policy)
        self.puts: list[tuple[str, int]] = []
        self.failing_calls: set[int] = set()
        self.num_calls = 0

    def _put(self, key: str, data: bytes) -> None:
        self.num_calls += 1
        if self.num_calls in self.failing_calls:
            raise TimeoutError(110, "no answer")
        super()._put(key, data)
        self.puts.append((key, len(data)))


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_a_small_file_is_one_object_of_the_same_name(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    mirror = FileMirror(path=tmp_path / "log", store=store, key="a/log")
    mirror.sync()
    assert store.puts == []  # nothing to say yet
    append(mirror.path, b"one\n")
    mirror.sync()
    append(mirror.path, b"two\n")
    mirror.sync()
    mirror.sync()
    assert (tmp_path / "store/a/log").read_bytes() == b"one\ntwo\n"
    assert store.puts == [("a/log", 4), ("a/log", 8)]


def test_an_upload_that_takes_effect_after_its_client_gave_up_takes_nothing_away(tmp_path: Path) -> None:
    late: list[tuple[str, bytes]] = []

    class Late(LocalStore):
        def _put(self, key: str, data: bytes) -> None:
            if not late:
                late.append((key, data))
                raise TimeoutError(110, "no answer")
            super()._put(key, data)

    store = Late(tmp_path / "store", policy=POLICY)
    mirror = FileMirror(path=tmp_path / "log", store=store, key="log")
    append(mirror.path, b"one\n")
    with pytest.raises(StoreUnavailable):
        mirror.sync()
    append(mirror.path, b"two\n")
    mirror.sync()
    store.put(*late[0])
    assert read_streamed(store, "log") == b"one\ntwo\n"
    append(mirror.path, b"three\n")
    mirror.sync()
    assert read_streamed(store, "log") == b"one\ntwo\nthree\n"


def test_a_large_file_is_cut_at_line_ends_and_old_parts_are_never_written_again(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    mirror = FileMirror(path=tmp_path / "log", store=store, key="log", part_bytes=100)
    for number in range(40):
        append(mirror.path, b"x" * (7 * number % 31) + b"\n")
        mirror.sync()
    append(mirror.path, b"x" * 250)  # a line longer than a part is cut inside
    mirror.sync()
    keys = part_keys(store, "log")
    assert keys == ["log", *(f"log.{part:06d}" for part in range(1, len(keys)))]
    assert [store.get(key)[-1:] for key in keys[:5]] == [b"\n"] * 5
    assert read_streamed(store, "log") == mirror.path.read_bytes()
    assert [key for key, _ in store.puts] == sorted(key for key, _ in store.puts)
    assert max(size for _, size in store.puts) <= 100


def test_other_names_are_not_taken_for_parts(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    for name in ("log", "log.000001", "log.txt", "log.1", "other.000001"):
        store.put(f"a/{name}", name.encode())
    assert part_keys(store, "a/log") == ["a/log", "a/log.000001"]


def test_a_store_that_is_away_is_said_once_and_again_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    root.write_text("no folder: the store is away")
    streamer = Streamer(interval_s=3600)
    streamer.add(FileMirror(path=tmp_path / "log", store=LocalStore(root, policy=POLICY), key="log"))
    append(tmp_path / "log", b"spooled\n")
    caplog.set_level("WARNING")
    assert [streamer.tick(), streamer.tick(), streamer.tick()] == [False] * 3
    assert len(caplog.records) == 1
    root.unlink()
    assert streamer.tick()
    assert "object store is back" in caplog.text
    assert read_streamed(LocalStore(root, policy=POLICY), "log") == b"spooled\n"


def test_what_a_killed_process_left_on_the_disk_is_uploaded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, remote = LocalStore(tmp_path / "local", policy=POLICY), CountingStore(tmp_path / "store")
    local.put("attempts/0001/metrics.jsonl", b"a\nb\nc\n")
    remote.put("attempts/0001/metrics.jsonl", b"a\n")
    options = {"names": ("metrics.jsonl", "driver.log"), "prefixes": ("attempts/0001", "attempts/0002")}
    assert upload_leftovers(local, remote, **options) == 4
    assert upload_leftovers(local, remote, **options) == 0
    assert read_streamed(remote, "attempts/0001/metrics.jsonl") == b"a\nb\nc\n"
    asked: list[str] = []
    monkeypatch.setattr(CountingStore, "_children", lambda store, prefix: asked.append(prefix) or [])
    assert upload_leftovers(local, remote, names=("driver.log",), prefixes=options["prefixes"]) == 0
    assert asked == [], "the store is not asked about what is not here"


def test_a_file_that_cannot_be_read_for_a_moment_keeps_neither_itself_nor_the_others_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ESTALE of a network file system: the thread went on dying of it, silently, with all that was logged behind it.
    store = CountingStore(tmp_path / "store")
    streamer = Streamer(interval_s=3600)
    for name in ("metrics", "log"):
        append(tmp_path / name, b"first\n")
        streamer.add(FileMirror(path=tmp_path / name, store=store, key=name))
    size = os.path.getsize

    def stale(path: object) -> int:
        if str(path).endswith("metrics"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return size(path)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os.path, "getsize", stale)
        assert streamer.tick() is False
        assert read_streamed(store, "log") == b"first\n"
        with pytest.raises(StoreUnavailable, match=r"metrics: .*Stale"):
            streamer.flush(POLICY)
    assert streamer.tick()
    assert read_streamed(store, "metrics") == b"first\n"


def test_the_streams_thread_outlives_whatever_a_store_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable
) -> None:
    store = CountingStore(tmp_path / "store")
    append(tmp_path / "log", b"line\n")
    raised: list[str] = []

    def odd(mirror: FileMirror, store: object = None) -> None:
        raised.append("once more")
        raise KeyError("LastModified")

    streamer = Streamer(interval_s=0.01)
    streamer.add(FileMirror(path=tmp_path / "log", store=store, key="log"))
    with monkeypatch.context() as patch:
        patch.setattr(FileMirror, "sync", odd)
        streamer.start()
        until(lambda: len(raised) > 2)
    until(lambda: read_streamed(store, "log") == b"line\n")
    assert streamer.close()
