"""Resuming: only a sealed checkpoint whose hashes hold is ever loaded; a damaged one is mended or passed over aloud."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.conftest import write_step
from tests.runs.files import MODEL, flip_a_bit, seal_without, store_folder

from opd.errors import CorruptRecord, StoreRefused, UnsafePath
from opd.runs.checkpoints import Checkpoints
from opd.runs.manifest import DRIVER_RANK, FileEntry, Manifest
from opd.runs.shards import upload_shards


def test_without_a_checkpoint_the_run_starts_from_the_beginning(make_checkpoints: Callable) -> None:
    decision = make_checkpoints().choose()
    assert (decision.step, decision.path, decision.rejected) == (None, None, ())
    assert decision.describe() == "starting from the beginning"


def test_the_newest_complete_step_is_taken_from_the_local_disk(
    make_checkpoints: Callable, save_step: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = make_checkpoints()
    for step in (5, 20, 100):
        save_step(checkpoints, step)
    decision = make_checkpoints(attempt=2).choose()
    assert (decision.step, decision.source, decision.path) == (100, "local", checkpoints.folder(100))
    assert not caplog.records, "there is nothing to warn of"


def test_a_new_machine_downloads_from_the_store(
    make_checkpoints: Callable, save_step: Callable, saved_content: Callable, loaded_content: Callable
) -> None:
    save_step(make_checkpoints(), 5, num_ranks=2)
    elsewhere = make_checkpoints(attempt=2, local="other-machine")
    decision = elsewhere.choose()
    assert (decision.step, decision.source) == (5, "store")
    assert loaded_content(decision.path) == saved_content(5, num_ranks=2)
    assert elsewhere.complete_steps(elsewhere.local) == [5]
    assert make_checkpoints(attempt=3, local="other-machine").choose().source == "local"


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "grow"])
@pytest.mark.parametrize("name", [MODEL, "data.pt"])
def test_a_damaged_local_file_is_fetched_again_from_the_store(
    make_checkpoints: Callable,
    save_step: Callable,
    saved_content: Callable,
    loaded_content: Callable,
    damage: str,
    name: str,
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    path = checkpoints.folder(5) / name
    if damage == "flip":
        flip_a_bit(path)
    elif damage == "truncate":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "grow":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        path.unlink()
    decision = make_checkpoints(attempt=2).choose()
    assert (decision.step, decision.source) == (5, "store")
    assert loaded_content(decision.path) == saved_content(5)
    (reason,) = decision.rejected
    assert reason.startswith(f"global_step_5 (local): {name} ")


def test_a_step_damaged_everywhere_falls_back_to_the_one_before_and_says_so(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, saved_content: Callable, loaded_content: Callable
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    save_step(checkpoints, 10)
    flip_a_bit(checkpoints.folder(10) / MODEL)
    flip_a_bit(store_folder(tmp_path, 10) / MODEL)
    decision = make_checkpoints(attempt=2).choose()
    assert decision.step == 5
    assert loaded_content(decision.path) == saved_content(5)
    text = decision.describe()
    assert "resuming from step 5 (local)" in text
    assert f"global_step_10 (local): {MODEL} does not have the manifest's sha256" in text
    assert f"global_step_10 (store): {MODEL} does not have the manifest's sha256" in text


@pytest.mark.parametrize("missing", ["COMPLETE", "manifest.json"])
def test_a_half_written_checkpoint_is_not_taken(make_checkpoints: Callable, save_step: Callable, missing: str) -> None:
    checkpoints = make_checkpoints(remote=None)
    save_step(checkpoints, 5)
    save_step(checkpoints, 10)
    (checkpoints.folder(10) / missing).unlink()
    assert make_checkpoints(attempt=2, remote=None).choose().step == 5


def test_a_manifest_changed_after_the_seal_is_not_taken(make_checkpoints: Callable, save_step: Callable) -> None:
    # Somebody replaces a pickle and its hash: COMPLETE still names the manifest that the run wrote.
    checkpoints = make_checkpoints(remote=None)
    save_step(checkpoints, 5)
    (checkpoints.folder(5) / MODEL).write_bytes(b"malice")
    path = checkpoints.folder(5) / "manifest.json"
    record = json.loads(path.read_text())
    entry = next(entry for entry in record["files"] if entry["path"] == MODEL)
    entry |= {"size": 6, "sha256": hashlib.sha256(b"malice").hexdigest()}
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    decision = make_checkpoints(attempt=2, remote=None).choose()
    assert decision.step is None
    assert "COMPLETE was not written for this manifest.json" in decision.rejected[0]


def test_a_step_of_another_experiment_is_not_taken_and_says_whose_it_is(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    save_step(make_checkpoints(), 5)
    foreign = make_checkpoints(spec_hash="hash-2")
    save_step(foreign, 10)
    decision = make_checkpoints(attempt=2).choose()
    assert decision.step == 5
    for source, reason in zip(("local", "store"), decision.rejected, strict=True):
        assert reason.startswith(f"global_step_10 ({source}): it was saved by another experiment (spec hash hash-2")


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("actor/optim_world_size_2_rank_0.pt", "it lists no actor/optim_world_size_2_rank_0.pt"),
        ("actor/extra_state_world_size_2_rank_1.pt", "it lists no actor/extra_state_world_size_2_rank_1.pt"),
        ("actor/model_world_size_2_rank_1.pt", "it lists no actor/model_world_size_2_rank_1.pt"),
        ("data.pt", "it lists no data.pt"),
    ],
)
def test_a_sealed_step_without_all_that_a_resume_loads_is_not_taken(
    make_checkpoints: Callable, save_step: Callable, lost: str, named: str
) -> None:
    checkpoints = make_checkpoints(remote=None)
    save_step(checkpoints, 5, num_ranks=2)
    save_step(checkpoints, 10, num_ranks=2)
    seal_without(checkpoints.folder(10), lost)
    decision = make_checkpoints(attempt=2, remote=None).choose()
    assert (decision.step, decision.rejected) == (5, (f"global_step_10 (local): {named}",))


def test_a_file_listed_under_a_rank_that_does_not_load_it_is_refused(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    # The rank that loads it would not have verified it.
    checkpoints = make_checkpoints(remote=None)
    save_step(checkpoints, 5, num_ranks=2)
    path = checkpoints.folder(5) / "manifest.json"
    manifest = Manifest.from_bytes(path.read_bytes())
    moved = tuple(dataclasses.replace(entry, rank=0) if entry.rank == 1 else entry for entry in manifest.files)
    manifest = dataclasses.replace(manifest, files=moved)
    path.write_bytes(manifest.to_bytes())
    (checkpoints.folder(5) / "COMPLETE").write_bytes(manifest.seal())
    (reason,) = make_checkpoints(attempt=2, remote=None).choose().rejected
    assert "actor/extra_state_world_size_2_rank_1.pt is listed under rank 0" in reason


@pytest.mark.parametrize(("sizes", "said"), [((2, 4), "2 and 4"), ((), "no")])
def test_shards_that_were_not_saved_together_are_no_checkpoint(sizes: tuple[int, ...], said: str) -> None:
    names = ["data.pt", *(f"actor/model_world_size_{size}_rank_0.pt" for size in sizes)]
    files = tuple(FileEntry(path=name, size=1, sha256="", rank=0) for name in names)
    gaps = Manifest(step=1, attempt=1, spec_hash="h", files=files).find_gaps()
    assert gaps == [f"it lists shards saved by {said} ranks, expected one number"]


def test_a_manifest_that_claims_a_million_ranks_costs_nothing() -> None:
    entries = tuple(
        FileEntry(path=f"actor/{part}_world_size_9999999_rank_0.pt", size=1, sha256="", rank=0)
        for part in ("model", "optim", "extra_state")
    )
    gaps = Manifest(step=1, attempt=1, spec_hash="h", files=entries).find_gaps()
    assert len(gaps) == 5
    assert gaps[0] == "it lists no data.pt"


@pytest.mark.parametrize(
    "change", [{"attempt": "1"}, {"step": True}, {"spec_hash": None}, {"step": 5.0}, {"attempt": 1e999}]
)
def test_a_manifest_with_fields_of_other_types_is_none(change: dict) -> None:
    manifest = Manifest(step=5, attempt=1, spec_hash="h", files=(FileEntry(path="a", size=1, sha256="", rank=0),))
    record = json.loads(manifest.to_bytes()) | change
    with pytest.raises(CorruptRecord):
        Manifest.from_bytes(json.dumps(record).encode())


def test_a_pickle_that_the_run_did_not_save_is_moved_away_before_loading(
    make_checkpoints: Callable, save_step: Callable, loaded_content: Callable, saved_content: Callable
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    foreign = checkpoints.folder(5) / "actor/extra_state_world_size_8_rank_3.pt"
    foreign.write_bytes(b"malice")
    decision = make_checkpoints(attempt=2).choose()
    assert loaded_content(decision.path) == saved_content(5)
    assert (decision.path / ".unlisted" / foreign.relative_to(decision.path)).read_bytes() == b"malice"


@pytest.mark.parametrize(
    "path",
    [
        "../../evil.pt",
        "/etc/evil.pt",
        "actor/../../evil.pt",
        "",
        "a//b",
        "./a",
        "a\\b",
        "a/\ud800",
        "a/\0b",
        "a/" + "b" * 300,
    ],
)
def test_a_manifest_path_that_leaves_its_folder_is_refused(path: str) -> None:
    with pytest.raises(UnsafePath, match=r"inside its checkpoint|no file system takes it"):
        FileEntry(path=path, size=0, sha256="", rank=0)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"version": 1}', b'{"version": 2, "files": []}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_manifest_is_named_as_such(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        Manifest.from_bytes(data)


def test_a_later_attempts_save_of_the_same_step_wins_over_an_older_copy(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    # Attempt 2 saved step 5 anew on another machine; this machine still holds attempt 1's.
    save_step(make_checkpoints(attempt=1), 5)
    newer = make_checkpoints(attempt=2, local="other-machine")
    save_step(newer, 5)
    decision = make_checkpoints(attempt=3).choose()
    assert (decision.source, decision.manifest.attempt) == ("store", 2)


def test_a_damaged_copy_in_the_store_does_not_spoil_an_older_one_on_the_disk(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, saved_content: Callable, loaded_content: Callable
) -> None:
    save_step(make_checkpoints(attempt=1), 5)
    save_step(make_checkpoints(attempt=2, local="other-machine"), 5, num_ranks=2)
    flip_a_bit(store_folder(tmp_path, 5) / "actor/model_world_size_2_rank_1.pt")
    decision = make_checkpoints(attempt=3).choose()
    assert (decision.step, decision.source, decision.manifest.attempt) == (5, "local", 1)
    assert loaded_content(decision.path) == saved_content(5)


def test_no_file_is_moved_in_while_another_one_is_damaged(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, loaded_content: Callable, saved_content: Callable
) -> None:
    # The store holds another save of step 5, with the same names and other bytes, one of them damaged.
    save_step(make_checkpoints(attempt=1), 5)
    newer = make_checkpoints(attempt=2, local="other-machine")
    assert newer.begin(5)
    write_step(newer.folder(5), 6)
    url = newer.remote.url
    reports = [upload_shards(rank=rank, step=5, step_dir=newer.folder(5), store_url=url) for rank in (DRIVER_RANK, 0)]
    newer.finalise(5, reports)
    flip_a_bit(store_folder(tmp_path, 5) / MODEL)
    decision = make_checkpoints(attempt=3).choose()
    assert (decision.source, decision.manifest.attempt) == ("local", 1)
    assert loaded_content(decision.path) == saved_content(5)


@pytest.mark.slow
def test_a_download_cut_short_goes_on_with_the_files_that_are_missing(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, saved_content: Callable, loaded_content: Callable
) -> None:
    save_step(make_checkpoints(), 5)
    elsewhere = make_checkpoints(attempt=2, local="other-machine")
    arrived = elsewhere.folder(5) / ".incoming/all" / MODEL
    arrived.parent.mkdir(parents=True)
    arrived.write_bytes(saved_content(5)[MODEL])
    inode = arrived.stat().st_ino
    decision = elsewhere.choose()
    assert loaded_content(decision.path) == saved_content(5)
    assert (decision.path / MODEL).stat().st_ino == inode
    assert list((decision.path / ".incoming").iterdir()) == []


def test_a_newer_save_on_the_disk_replaces_an_earlier_attempts_copy_in_the_store(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    save_step(make_checkpoints(attempt=1, local="other-machine"), 5)
    newer: Checkpoints = make_checkpoints(attempt=2)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("no folder: the store is away")
    save_step(newer, 5)
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    assert newer.upload_missing() == [5]
    assert newer.upload_missing() == []
    assert make_checkpoints(attempt=3, local="third-machine").choose().manifest.attempt == 2


def test_a_store_that_is_away_stops_the_choice_instead_of_losing_steps(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    save_step(make_checkpoints(), 5)
    (tmp_path / "store").rename(tmp_path / "gone")
    (tmp_path / "store").write_text("no folder")
    with pytest.raises(StoreRefused):
        make_checkpoints(attempt=2).choose()
