"""Streaming: the stored parts are always a prefix of the file, at a bounded cost, with any answers of the store."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opd.errors import StoreUnavailable
from opd.runs.stream import FileMirror, Streamer, part_keys, read_streamed
from opd.store.base import RetryPolicy
from opd.store.local import LocalStore

POLICY = RetryPolicy(max_elapsed_s=0.0)


class CountingStore(LocalStore):
    """A real folder that notes its puts."""

    def __init__(self, root: Path, *, policy: RetryPolicy = POLICY):
        super().__init__(root, policy=policy)
        self.puts: list[tuple[str, int]] = []

    def _put(self, key: str, data: bytes) -> None:
        super()._put(key, data)
        self.puts.append((key, len(data)))


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_a_small_file_is_one_object_of_the_same_name(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    mirror = FileMirror(path=tmp_path / "log", store=store, key="a/log")
    mirror.sync()
    assert store.puts == []
    for line in (b"one\n", b"two\n", b""):
        append(mirror.path, line)
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
    for name in ("log.txt", "log.1", "other.000001"):
        store.put(name, b"of another file")
    keys = part_keys(store, "log")
    assert keys == ["log", *(f"log.{part:06d}" for part in range(1, len(keys)))]
    assert [store.get(key)[-1:] for key in keys[:5]] == [b"\n"] * 5
    assert read_streamed(store, "log") == mirror.path.read_bytes()
    puts = store.puts[:-3]
    assert [key for key, _ in puts] == sorted(key for key, _ in puts)
    assert max(size for _, size in puts) <= 100


def test_a_mirror_continues_after_another_processs_parts(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    append(tmp_path / "log", b"a\nb\nc\n")
    store.put("log", b"a\n")
    store.put("log.000001", b"b\n")
    FileMirror.resume(path=tmp_path / "log", store=store, key="log").sync()
    assert read_streamed(store, "log") == b"a\nb\nc\n"
    assert store.puts[2:] == [("log.000001", 4)]


def test_an_unreachable_store_is_said_once_and_again_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    root.write_text("no folder: the store is away")
    streamer = Streamer()
    streamer.add(path=tmp_path / "log", store=LocalStore(root, policy=POLICY), key="log")
    append(tmp_path / "log", b"spooled\n")
    caplog.set_level("WARNING")
    assert [streamer.tick(), streamer.tick(), streamer.tick()] == [False] * 3
    assert len(caplog.records) == 1
    root.unlink()
    assert streamer.tick()
    assert "object store is back" in caplog.text
    assert read_streamed(LocalStore(root, policy=POLICY), "log") == b"spooled\n"


def test_a_file_that_cannot_be_read_for_a_moment_keeps_neither_itself_nor_the_others_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CountingStore(tmp_path / "store")
    streamer = Streamer()
    for name in ("metrics", "log"):
        append(tmp_path / name, b"first\n")
        streamer.add(path=tmp_path / name, store=store, key=name)
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
            streamer.flush()
    assert streamer.tick()
    assert read_streamed(store, "metrics") == b"first\n"


def test_the_thread_outlives_any_error_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable
) -> None:
    store = CountingStore(tmp_path / "store")
    append(tmp_path / "log", b"line\n")
    raised: list[str] = []

    def odd(mirror: FileMirror) -> None:
        raised.append("once more")
        raise KeyError("LastModified")

    monkeypatch.setattr("opd.runs.stream.FLUSH_INTERVAL_S", 0.01)
    streamer = Streamer()
    streamer.add(path=tmp_path / "log", store=store, key="log")
    with monkeypatch.context() as patch:
        patch.setattr(FileMirror, "sync", odd)
        streamer.start()
        until(lambda: len(raised) > 2)
    until(lambda: read_streamed(store, "log") == b"line\n")
    assert streamer.close()
