"""The store: atomic and create-only writes, retries that end, and errors that say what to do."""

import asyncio
import errno
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from opd.errors import AlreadyExists, CorruptRecord, CreateOnlyUnsupported, StoreRefused, StoreUnavailable
from opd.store import base
from opd.store.base import RetryPolicy
from opd.store.durable import fsync_file
from opd.store.local import LocalStore
from opd.store.remote import CALL_DEADLINE_S, FsspecStore, open_store


def test_a_put_replaces_the_object_and_leaves_nothing_else(local_store: LocalStore) -> None:
    local_store.put("a/b", b"old")
    local_store.put("a/b", b"new")
    assert local_store.get("a/b") == b"new"
    assert [path.name for path in (local_store.root / "a").iterdir()] == ["b"]


@pytest.mark.parametrize("has_links", [True, False])
def test_only_the_first_create_of_a_key_succeeds_and_a_repeated_one_of_its_own_bytes(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def no_links(*args: object) -> None:
        raise OSError(errno.ENOTSUP, "no hard links here")

    if not has_links:
        monkeypatch.setattr("os.link", no_links)
    for _ in range(2):  # the second is a retry after a lost answer
        local_store.create("claim", b"first")
    with pytest.raises(AlreadyExists):
        local_store.create("claim", b"second")
    assert local_store.get("claim") == b"first"


def test_a_missing_object_is_none_to_info_and_an_error_to_get(tmp_path: Path, local_store: LocalStore) -> None:
    (local_store.root / "folder").mkdir(parents=True)
    assert local_store.info("nothing") is local_store.info("folder") is None
    assert local_store.children("nothing") == []
    assert local_store.list("nothing") == []
    local_store.delete("nothing")
    for call in (
        lambda: local_store.get("nothing"),
        lambda: local_store.get_file("nothing", tmp_path / "folder/target"),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert list((tmp_path / "folder").iterdir()) == []


def test_listings_show_objects_but_no_temporary_files(local_store: LocalStore) -> None:
    local_store.put("a/b/c", b"123")
    local_store.put("a/d", b"4")
    (local_store.root / "a/.opd-tmp-left-by-a-kill").write_bytes(b"half")
    assert local_store.children("a") == ["b", "d"]
    assert [(info.key, info.size) for info in local_store.list("a")] == [("a/b/c", 3), ("a/d", 1)]


@pytest.mark.parametrize(("data", "why"), [(b'{"run_id": ', r"run\.json is not JSON"), (b"[1]", "holds list")])
def test_a_record_that_is_no_json_object_is_named(local_store: LocalStore, data: bytes, why: str) -> None:
    local_store.put("run.json", data)
    with pytest.raises(CorruptRecord, match=why):
        local_store.get_json("run.json")


# ---- failures of a folder ----------------------------------------------------------------------------------------------


class FlakyStore(LocalStore):
    """A real folder whose server fails the next `failures` writes with the given errno."""

    failures: int = 0
    error_number: int = errno.EIO

    def _put(self, key: str, data: bytes) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise OSError(self.error_number, "the server does not answer")
        super()._put(key, data)


def test_a_transient_failure_is_retried_until_it_is_over(tmp_path: Path) -> None:
    store = FlakyStore(tmp_path, policy=RetryPolicy(max_elapsed_s=30, first_wait_s=0.001, max_wait_s=0.01))
    store.failures = 4
    before = random.getstate()
    store.put("key", b"data")
    assert store.get("key") == b"data"
    assert random.getstate() == before, "the global generator is saved with a rank's checkpoint"


def test_a_transient_failure_that_lasts_ends_in_store_unavailable_within_the_policy(tmp_path: Path) -> None:
    store = FlakyStore(tmp_path, policy=RetryPolicy(max_elapsed_s=0.05, first_wait_s=0.001, max_wait_s=0.01))
    store.failures = 10**9
    with pytest.raises(StoreUnavailable, match=r"cannot write .*key.*does not answer"):
        store.put("key", b"data")


def test_a_full_disk_is_refused_at_once(tmp_path: Path) -> None:
    store = FlakyStore(tmp_path, policy=RetryPolicy(max_elapsed_s=3600))
    store.failures, store.error_number = 10**9, errno.ENOSPC
    with pytest.raises(StoreRefused, match="has space"):
        store.put("key", b"data")
    assert store.failures == 10**9 - 1


def test_what_is_synced_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}")))
    fsync_file(tmp_path)
    assert synced == [str(tmp_path.resolve())]
    assert str(tmp_path.resolve()) not in [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]


def test_a_folder_above_that_cannot_be_synced_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(path: Path) -> None:
        if tmp_path.is_relative_to(path):
            raise PermissionError(errno.EACCES, "may be passed through only")

    monkeypatch.setattr("opd.store.durable.fsync_folder", sync)
    (tmp_path / "store").mkdir()
    LocalStore(tmp_path / "store").put("object", b"bytes")
    with pytest.raises(StoreRefused):
        LocalStore(tmp_path / "new").put("object", b"bytes")


def test_a_root_that_is_a_file_is_refused_and_not_taken_for_empty(local_store: LocalStore) -> None:
    local_store.root.write_text("in the way")
    for call in (
        lambda: local_store.put("key", b""),
        lambda: local_store.create("key", b""),
        lambda: local_store.info("key"),
        lambda: local_store.children(""),
        lambda: local_store.list(""),
    ):
        with pytest.raises(StoreRefused, match="check that the folder exists"):
            call()


# ---- create-only writes ------------------------------------------------------------------------------------------------


def test_a_store_that_overwrites_on_create_and_a_protocol_without_it_are_refused(tmp_path: Path) -> None:
    class ForgetfulStore(LocalStore):
        def _create(self, key: str, data: bytes) -> None:
            self._put(key, data)

    with pytest.raises(CreateOnlyUnsupported, match="conditional writes"):
        ForgetfulStore(tmp_path).check_create_only()
    with pytest.raises(CreateOnlyUnsupported, match=r"memory:// has no atomic create-only write.*s3"):
        open_store("memory://anywhere")


def test_the_create_only_check_needs_no_right_to_delete(tmp_path: Path) -> None:
    class KeepsAll(LocalStore):
        def _delete(self, key: str) -> None:
            raise PermissionError(errno.EACCES, "Access Denied")

    for _ in range(2):
        KeepsAll(tmp_path).check_create_only()
    assert LocalStore(tmp_path).list("") == [], "no listing shows its object"


# ---- services (a real S3 server: tests/runs/s3) ------------------------------------------------------------------------


@pytest.mark.parametrize(("protocol", "package"), [("gs", "gcsfs"), ("az", "adlfs")])
def test_a_store_whose_package_is_missing_names_the_extra_to_install(
    protocol: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StoreRefused, match=rf"nstall {package} .*pip install 'opd\[gcs\]'. for gs://"):
        open_store(f"{protocol}://b/x")


def test_a_transfer_has_a_second_for_every_64_kib_beside_a_requests_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Transfer:
        """Notes for how long the store waits for it, and has ended by then."""

        waited_s: ClassVar[list[float]] = []

        def result(self, timeout_s: float) -> None:
            self.waited_s.append(timeout_s)

        def cancel(self) -> None:
            pass

    with open(tmp_path / "shard", "wb") as file:
        file.truncate(64 * 2**20)
    deleted: list[str] = []
    filesystem = SimpleNamespace(loop=None, _put_file=lambda *paths: None, _rm_file=deleted.append)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda call, loop: Transfer())
    monkeypatch.setattr("opd.store.remote._filesystem", lambda *_: filesystem)
    store = FsspecStore("s3://bucket/r")
    store.put_file("shard", tmp_path / "shard")
    store.delete("shard")
    assert Transfer.waited_s == [CALL_DEADLINE_S + 1024, CALL_DEADLINE_S]
    assert deleted == ["bucket/r/shard"]


def unanswered(code: int | None = None, name: str = "Unanswered") -> Exception:
    """Make an error of a client library, with the service's status where there is one."""
    return type(name, (Exception,), {"code": code})("no")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "is_transient"),
    [
        (unanswered(503), True),
        (unanswered(429), True),
        (unanswered(400), False),
        (unanswered(), True),
        (KeyError("ContentLength"), True),
        (TimeoutError(), True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
        (PermissionError(errno.EACCES, "denied"), False),
        (unanswered(name="NoCredentialsError"), False),
        (unanswered(name="ParamValidationError"), False),
        (OSError(errno.ENOSPC, "the local disk is full"), False),
    ],
    ids=repr,
)
def test_an_error_is_tried_again_unless_another_try_cannot_help(error: Exception, is_transient: bool) -> None:
    assert base.is_transient(error) is is_transient
