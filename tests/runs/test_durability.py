"""What is called safe has its bytes, its name and its folders on the disk: a power cut takes nothing of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.conftest import write_step
from tests.runs.files import MODEL
from tests.runs.power import at_each_seal, watched_disk

from opd.errors import StoreRefused, StoreUnavailable
from opd.runs.manifest import DRIVER_RANK
from opd.runs.metrics import MetricsWriter
from opd.runs.process import ALIVE_FILE
from opd.runs.run import Run
from opd.runs.shards import upload_shards
from opd.store.base import NO_RETRY
from opd.store.local import TEMPORARY_PREFIX, LocalStore

NOT_PROMISED = ("heartbeat", TEMPORARY_PREFIX, ALIVE_FILE)


@pytest.mark.parametrize("how", ["put", "create", "put_file"])
def test_an_object_is_on_the_disk_with_its_name_and_new_folders_when_a_write_returns(tmp_path: Path, how: str) -> None:
    (tmp_path / "source").write_bytes(b"bytes")
    with watched_disk() as disk:
        store = LocalStore(tmp_path / "a/b/store")
        getattr(store, how)("c/d/object", tmp_path / "source" if how == "put_file" else b"bytes")
    assert [line for line in disk.lost(tmp_path) if "source" not in line] == []


def test_a_folder_above_that_cannot_be_opened_is_no_reason_to_refuse_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path) -> None:
        if tmp_path.is_relative_to(path):
            raise PermissionError(errno.EACCES, "may be passed through only")

    monkeypatch.setattr("opd.store.durable.fsync_folder", opened)
    (tmp_path / "store").mkdir()
    LocalStore(tmp_path / "store").put("object", b"bytes")
    with pytest.raises(StoreRefused):
        LocalStore(tmp_path / "new").put("object", b"bytes")


def test_without_hard_links_a_claim_is_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: object) -> None:
        raise OSError(errno.ENOTSUP, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    with watched_disk() as disk:
        LocalStore(tmp_path / "store").create("owner.json", b"me")
    assert disk.lost(tmp_path) == []


def test_a_download_is_on_the_disk_when_it_is_there(tmp_path: Path) -> None:
    LocalStore(tmp_path / "store").put("a/model", b"weights" * 1000)
    with watched_disk() as disk:
        LocalStore(tmp_path / "store").get_file("a/model", tmp_path / "local/x/y/model")
    assert disk.lost(tmp_path / "local") == []


def test_a_name_that_was_taken_away_stays_away(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("COMPLETE", b"")
    store.put("other", b"")
    synced = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: synced.append(os.listdir(f"/proc/self/fd/{descriptor}")))
        store.delete("COMPLETE")
    assert synced == [["other"]]


def test_flushed_metrics_survive(tmp_path: Path) -> None:
    with watched_disk() as disk:
        writer = MetricsWriter(path=tmp_path / "attempts/0001/metrics.jsonl")
        writer.log(1, {"loss": 1.0})
        assert disk.lost(tmp_path)
        writer.flush()
        assert disk.lost(tmp_path) == []
        writer.close()


def test_when_a_step_is_sealed_all_that_led_up_to_it_is_on_the_disk(open_run: Callable, tmp_path: Path) -> None:
    # verl creates the step's folders and files itself and syncs none of them; the row of the step is written just before.
    with watched_disk() as disk:
        store = tmp_path / "store"
        with open_run(store_url=str(store), flush_interval_s=1e6, lease_ttl_s=1e6) as run:
            run._summariser.stop()  # no thread writes beside the save: a file that is just being written is not promised
            save(run, 1, disk, tmp_path)


def save(run: Run, step: int, disk, tmp_path: Path) -> None:
    assert run.checkpoints.begin(step)
    folder = run.checkpoints.folder(step)
    write_step(folder, step)
    run.log(step, {"loss": 1.0})
    with at_each_seal(disk, tmp_path) as moments:
        reports = [
            upload_shards(rank=rank, step=step, step_dir=folder, store_url=run.handle.store_url)
            for rank in (DRIVER_RANK, 0)
        ]
        run.checkpoints.finalise(step, reports)
    # No part of the promise: a heartbeat or a part of the log on its way, and the lock, which tells nothing after a power cut.
    promised = [[line for line in lost if not any(name in line for name in NOT_PROMISED)] for lost in moments]
    assert promised == [[], []], "local, then store"
    assert [line for line in disk.lost(tmp_path) if "checkpoints" in line] == []


def test_a_step_that_was_fetched_is_on_the_disk_before_it_is_marked_complete(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    save_step(make_checkpoints(), 5, num_ranks=2)
    elsewhere = make_checkpoints(attempt=2, local="other-machine")
    with watched_disk() as disk, at_each_seal(disk, tmp_path / "other-machine") as moments:
        assert elsewhere.choose().source == "store"
    assert moments == [[]]
    assert disk.lost(tmp_path / "other-machine") == []


def unreadable(monkeypatch: pytest.MonkeyPatch, bad: Path, code: int = errno.EIO) -> None:
    """A bad sector under one file: it can be listed, renamed and removed, and not be read."""
    import builtins
    import io

    real, inode = io.open, bad.stat().st_ino

    def opened(file: object, *args: object, **kwargs: object):
        if isinstance(file, str | Path) and os.path.exists(file) and os.stat(file).st_ino == inode:
            raise OSError(code, os.strerror(code), str(bad))
        return real(file, *args, **kwargs)

    for module in (builtins, io):
        monkeypatch.setattr(module, "open", opened)


def test_a_download_that_cannot_be_read_back_ends_the_start_instead_of_an_older_step_being_taken(
    make_checkpoints: Callable, save_step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    save_step(checkpoints, 10)
    elsewhere = make_checkpoints(attempt=2, local="other-machine")
    elsewhere.local.policy = NO_RETRY

    def hashed(path: Path, **options: object) -> tuple[int, str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("opd.store.transfer.hash_file", hashed)
    with pytest.raises(StoreUnavailable, match="has arrived and cannot be read"):
        elsewhere.choose()


@pytest.mark.parametrize("name", [MODEL, "data.pt", "manifest.json", "COMPLETE"])
def test_a_file_that_cannot_be_read_is_passed_over_for_the_stores_good_copy(
    make_checkpoints: Callable, save_step: Callable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    save_step(checkpoints, 10)
    with monkeypatch.context() as patch:
        unreadable(patch, checkpoints.folder(10) / name)
        decision = make_checkpoints(attempt=2).choose()
    assert (decision.step, decision.source) == (10, "store")
    assert "Input/output error" in decision.rejected[0]
    assert make_checkpoints(attempt=3).choose().source == "local", "mended on the way"
