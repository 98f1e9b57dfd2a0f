"""The choice of a checkpoint: by seal and hashes alone, from the disk or the store, and never silently an older one."""

import builtins
import errno
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.conftest import chosen, read_content, step_content
from tests.runs.files import MODEL, flip_a_bit, reseal, store_folder

from opd.errors import CheckpointError, CorruptRecord, StoreRefused
from opd.runs.manifest import FileEntry, Manifest
from opd.store.base import NO_RETRY


def test_the_newest_complete_step_is_taken_from_the_disk_and_a_new_machine_downloads_it(
    make_checkpoints: Callable, save_step: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    assert chosen(make_checkpoints()).describe() == "starting from the beginning"
    checkpoints = make_checkpoints()
    for step in (5, 20, 100):
        save_step(checkpoints, step, num_ranks=2)
    decision = chosen(make_checkpoints(attempt=2))
    assert (decision.step, decision.source) == (100, "local")
    assert not caplog.records, "there is nothing to warn of"
    elsewhere = make_checkpoints(attempt=2, local="other-machine")
    decision = chosen(elsewhere)
    assert (decision.step, decision.source) == (100, "store")
    assert read_content(elsewhere.folder(100)) == step_content(100, num_ranks=2)
    assert chosen(make_checkpoints(attempt=3, local="other-machine")).source == "local"


@pytest.mark.parametrize("name", [MODEL, "data.pt"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "grow"])
def test_a_damaged_local_file_alone_is_fetched_again_from_the_store(
    make_checkpoints: Callable, save_step: Callable, damage: str, name: str
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    path, whole = checkpoints.folder(5) / name, checkpoints.folder(5) / "actor/optim_world_size_1_rank_0.pt"
    inode = whole.stat().st_ino
    left = path.with_name(f".{path.name}.part-0")
    left.write_bytes(b"of a download that was killed")
    if damage == "flip":
        flip_a_bit(path)
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "truncate" else path.read_bytes() + b"x")
    decision = chosen(make_checkpoints(attempt=2))
    assert (decision.step, decision.source) == (5, "store")
    assert read_content(checkpoints.folder(5)) == step_content(5)
    assert (whole.stat().st_ino, left.exists()) == (inode, False)
    (reason,) = decision.rejected
    assert reason.startswith(f"global_step_5 (local): {name} ")


def bad_sector(monkeypatch: pytest.MonkeyPatch, bad: Path) -> None:
    """One file can be listed, renamed and removed, and not be read."""
    real, inode = io.open, bad.stat().st_ino

    def opened(file: object, *args: object, **kwargs: object):
        if isinstance(file, str | Path) and os.path.exists(file) and os.stat(file).st_ino == inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(bad))
        return real(file, *args, **kwargs)

    for module in (builtins, io):
        monkeypatch.setattr(module, "open", opened)


@pytest.mark.parametrize("name", [MODEL, "manifest.json", "COMPLETE"])
def test_a_file_that_cannot_be_read_is_replaced_by_the_stores_good_copy(
    make_checkpoints: Callable, save_step: Callable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 10)
    with monkeypatch.context() as patch:
        bad_sector(patch, checkpoints.folder(10) / name)
        decision = chosen(make_checkpoints(attempt=2))
    assert (decision.step, decision.source) == (10, "store")
    assert "Input/output error" in decision.rejected[0]
    assert chosen(make_checkpoints(attempt=3)).source == "local", "mended on the way"


def test_a_download_that_cannot_be_read_back_ends_the_start_instead_of_losing_a_step(
    make_checkpoints: Callable, save_step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (5, 10):
        save_step(make_checkpoints(), step)
    elsewhere = make_checkpoints(attempt=2, local="other-machine")
    elsewhere.local.policy = NO_RETRY

    def hashed(path: Path, **options: object) -> tuple[int, str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("opd.store.transfer.hash_file", hashed)
    with pytest.raises(OSError, match="Input/output error"):
        chosen(elsewhere)


def test_a_step_damaged_everywhere_gives_way_to_the_one_before_and_both_reasons_are_named(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    checkpoints = make_checkpoints()
    for step in (5, 10):
        save_step(checkpoints, step)
    flip_a_bit(checkpoints.folder(10) / MODEL)
    (store_folder(tmp_path, 10) / MODEL).write_bytes(b"of attempt 2, killed within its upload")
    decision = chosen(make_checkpoints(attempt=2))
    assert read_content(checkpoints.folder(5)) == step_content(5)
    text = decision.describe()
    assert "resuming from step 5 (local)" in text
    assert f"global_step_10 (local): {MODEL} does not have the manifest's sha256" in text
    assert f"global_step_10 (store): {MODEL} has 38 bytes" in text


def test_a_step_is_taken_only_by_the_seal_and_the_experiment_that_saved_it(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    checkpoints = make_checkpoints(remote=None)
    for step in (5, 10, 15, 20, 30):
        save_step(checkpoints, step)
    save_step(make_checkpoints(remote=None, spec_hash="hash-2"), 25)
    (checkpoints.folder(10) / "COMPLETE").unlink()
    (checkpoints.folder(15) / "manifest.json").unlink()
    manifest = json.loads((checkpoints.folder(20) / "manifest.json").read_text())
    manifest["files"][0]["sha256"] = hashlib.sha256(b"malice").hexdigest()
    (checkpoints.folder(20) / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    reseal(checkpoints.folder(30), lost="actor/optim_world_size_1_rank_0.pt")
    decision = chosen(make_checkpoints(attempt=2, remote=None))
    assert decision.step == 5
    gap, foreign, changed, half = decision.rejected
    assert gap == "global_step_30 (local): it lists no actor/optim_world_size_1_rank_0.pt"
    assert "saved by another experiment (spec hash hash-2" in foreign
    assert "COMPLETE was not written for this manifest.json" in changed
    assert "COMPLETE without manifest.json" in half


def entries(*names: str) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(path=name, size=1, sha256="", rank=-1 if "/" not in name else 0) for name in names)


@pytest.mark.parametrize(
    ("files", "gap"),
    [
        (entries("data.pt", *(f"actor/model_world_size_{n}_rank_0.pt" for n in (2, 4))), "shards saved by 2 and 4 ranks"),
        (entries("data.pt"), "shards saved by no ranks"),
        (entries("actor/model_world_size_9999999_rank_0.pt"), "it lists no data.pt"),
    ],
)  # fmt: skip
def test_a_gap_is_named_for_any_number_of_ranks_that_a_name_claims(files: tuple[FileEntry, ...], gap: str) -> None:
    gaps = Manifest(step=1, attempt=1, spec_hash="h", files=files).find_gaps()
    assert gap in gaps[0]
    assert len(gaps) <= 5


@pytest.mark.parametrize(
    "change", [{"attempt": "1"}, {"step": True}, {"spec_hash": None}, {"attempt": 1e999}, {"files": [{}]}]
)
def test_a_manifest_with_other_fields_is_none(change: dict) -> None:
    manifest = Manifest(step=5, attempt=1, spec_hash="h", files=entries("a"))
    with pytest.raises((CorruptRecord, CheckpointError)):
        Manifest.from_bytes(json.dumps(json.loads(manifest.to_bytes()) | change).encode())


@pytest.mark.parametrize(
    ("data", "place"),
    [(b"", "the top"), (b"[]", "the top"), (b"{}", "step"), (b'{"files": [1]}', "step"), (b"\xff", "the top"),
     (b"[" * 100_000, "the top")],
)  # fmt: skip
def test_any_other_content_is_no_manifest(data: bytes, place: str) -> None:
    with pytest.raises(CorruptRecord, match=f"at {place}$"):
        Manifest.from_bytes(data)


@pytest.mark.parametrize(
    "path",
    ["../../evil", "/etc/evil", "a/../../evil", "", "a//b", "./a", "a\\b", "a/\ud800", "a/\0b", "a/" + "b" * 300],
)
def test_a_manifest_path_that_leaves_its_folder_is_an_error(path: str) -> None:
    with pytest.raises(CheckpointError, match="inside its checkpoint folder, and of names that a file system takes"):
        FileEntry(path=path, size=0, sha256="", rank=0)


def test_a_later_attempts_save_of_the_same_step_is_taken(make_checkpoints: Callable, save_step: Callable) -> None:
    save_step(make_checkpoints(attempt=1), 5)
    save_step(make_checkpoints(attempt=2, local="other-machine"), 5, num_ranks=2)
    decision = chosen(make_checkpoints(attempt=3))
    assert (decision.source, decision.manifest.attempt) == ("store", 2)


def test_an_unreachable_store_stops_the_choice_instead_of_losing_steps(
    make_checkpoints: Callable, save_step: Callable, away: Callable
) -> None:
    save_step(make_checkpoints(), 5)
    with away(), pytest.raises(StoreRefused):
        chosen(make_checkpoints(attempt=2))
