"""Checkpoints: sealed whole or not at all, resumed from only by their hashes, kept as long as a resume needs them."""

from __future__ import annotations

import builtins
import dataclasses
import errno
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.conftest import read_content, step_content, write_step
from tests.runs.files import MODEL, flip_a_bit, seal_without, store_folder

from opd.errors import CheckpointError, CorruptRecord, Overtaken, StoreRefused, StoreUnavailable, UnsafePath
from opd.runs.checkpoints import Checkpoints
from opd.runs.manifest import DRIVER_RANK, FileEntry, Manifest
from opd.runs.shards import ShardReport, upload_shards
from opd.store.base import NO_RETRY
from opd.store.local import LocalStore

ENTRY = FileEntry(path="data.pt", size=0, sha256="", rank=0)


@pytest.fixture
def away(tmp_path: Path):
    """The store is unreachable within the block: a file is in the place of its folder."""
    import contextlib

    @contextlib.contextmanager
    def block():
        (tmp_path / "store").rename(tmp_path / "away")
        (tmp_path / "store").write_text("no folder")
        yield
        (tmp_path / "store").unlink()
        (tmp_path / "away").rename(tmp_path / "store")

    return block


def reports_of(checkpoints: Checkpoints, step: int, ranks=(DRIVER_RANK, 0), *, url: str | None = None):
    folder = checkpoints.folder(step)
    return [upload_shards(rank=rank, step=step, step_dir=folder, store_url=url) for rank in ranks]


# ---- saving ------------------------------------------------------------------------------------------------------------


def test_a_saved_step_is_complete_in_both_places_and_its_manifest_lists_every_file(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    checkpoints = make_checkpoints(attempt=3)
    save_step(checkpoints, 5, num_ranks=2)
    content = step_content(5, num_ranks=2)
    assert checkpoints.complete_steps(checkpoints.local) == checkpoints.complete_steps(checkpoints.remote) == [5]
    assert read_content(store_folder(tmp_path, 5)) == read_content(checkpoints.folder(5)) == content
    record = json.loads((store_folder(tmp_path, 5) / "manifest.json").read_text())
    assert (record["step"], record["attempt"], record["spec_hash"]) == (5, 3, "hash-1")
    assert {entry["path"]: (entry["size"], entry["sha256"]) for entry in record["files"]} == {
        path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in content.items()
    }
    ranks = {entry["path"]: entry["rank"] for entry in record["files"]}
    assert ranks["data.pt"] == DRIVER_RANK
    assert ranks["actor/huggingface/config.json"] == ranks["actor/model_world_size_2_rank_0.pt"] == 0
    assert ranks["actor/optim_world_size_2_rank_1.pt"] == 1


@pytest.mark.parametrize("place", ["local", "remote"])
def test_an_overtaken_attempt_seals_and_deletes_nothing(
    make_checkpoints: Callable, save_step: Callable, place: str
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    assert checkpoints.begin(10)
    getattr(checkpoints, place).put_json("attempts/0002/owner.json", {})
    for forbidden in (
        lambda: checkpoints.finalise(10, [ShardReport(rank=0, entries=(ENTRY,))]),
        lambda: checkpoints.begin(5),
        lambda: checkpoints.prune(keep_last=1),
    ):
        with pytest.raises(Overtaken):
            forbidden()
    assert checkpoints.complete_steps(checkpoints.local) == checkpoints.complete_steps(checkpoints.remote) == [5]


class Overtakes(LocalStore):
    """Another attempt begins at the very moment at which a manifest is written here."""

    def _put(self, key: str, data: bytes) -> None:
        super()._put(key, data)
        if key.endswith("manifest.json"):
            super()._put("attempts/0002/owner.json", b"{}")


@pytest.mark.parametrize("place", ["local", "remote"])
def test_an_attempt_that_is_overtaken_between_manifest_and_seal_does_not_seal(
    make_checkpoints: Callable, tmp_path: Path, place: str
) -> None:
    checkpoints: Checkpoints = make_checkpoints()
    setattr(checkpoints, place, Overtakes(tmp_path / ("local" if place == "local" else "store")))
    assert checkpoints.begin(5)
    write_step(checkpoints.folder(5), 5)
    with pytest.raises(Overtaken):
        checkpoints.finalise(5, reports_of(checkpoints, 5, url=checkpoints.remote.url))
    assert checkpoints.complete_steps(getattr(checkpoints, place)) == []


def test_without_a_store_steps_are_sealed_on_the_disk_and_uploaded_later(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, away: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints: Checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    with away():
        for step in (10, 15):
            save_step(checkpoints, step)
        assert checkpoints.prune(keep_last=2) == [5]
        assert checkpoints.num_failed_uploads == 2
        with pytest.raises(StoreRefused):
            checkpoints.upload_missing()
    assert "global_step_15 is complete on the local disk only" in caplog.text
    flip_a_bit(checkpoints.folder(10) / MODEL)
    assert checkpoints.upload_missing() == [15]
    assert f"global_step_10 is not in the store: {MODEL} does not have" in caplog.text
    assert read_content(store_folder(tmp_path, 15)) == step_content(15)


def test_a_newer_save_on_the_disk_replaces_an_earlier_attempts_copy_in_the_store(
    make_checkpoints: Callable, save_step: Callable, away: Callable
) -> None:
    save_step(make_checkpoints(attempt=1, local="other-machine"), 5)
    newer: Checkpoints = make_checkpoints(attempt=2)
    with away():
        save_step(newer, 5)
    assert newer.upload_missing() == [5]
    assert newer.upload_missing() == []
    assert make_checkpoints(attempt=3, local="third-machine").choose().manifest.attempt == 2


def test_the_step_resumed_from_is_not_saved_again(make_checkpoints: Callable, save_step: Callable) -> None:
    save_step(make_checkpoints(), 5)
    resumed = make_checkpoints(attempt=2)
    assert resumed.choose().step == 5
    assert resumed.begin(5) is False
    assert resumed.complete_steps() == [5]


@pytest.mark.parametrize(
    ("entries", "why"), [((ENTRY, ENTRY), r"listed twice: data\.pt"), ((), "no files")], ids=["twice", "none"]
)
def test_a_file_acknowledged_twice_or_no_file_at_all_is_an_error(
    make_checkpoints: Callable, entries: tuple, why: str
) -> None:
    with pytest.raises(CheckpointError, match=why):
        make_checkpoints().finalise(1, [ShardReport(rank=0, entries=entries)])


@pytest.mark.parametrize("silent", [DRIVER_RANK, 1, "optimizer"])
def test_a_step_without_a_part_is_not_sealed(make_checkpoints: Callable, silent: object) -> None:
    checkpoints = make_checkpoints(remote=None)
    assert checkpoints.begin(1)
    write_step(checkpoints.folder(1), 1, num_ranks=2)
    if silent == "optimizer":
        (checkpoints.folder(1) / "actor/optim_world_size_2_rank_0.pt").unlink()
    reports = reports_of(checkpoints, 1, [rank for rank in (DRIVER_RANK, 0, 1) if rank != silent])
    with pytest.raises(CheckpointError, match=r"not sealed, no run could resume from it: it lists no .*save_contents"):
        checkpoints.finalise(1, reports)
    assert checkpoints.complete_steps() == []


class Lies(LocalStore):
    """A store that accepts every upload and keeps half of the models."""

    def _put_file(self, key: str, path: Path) -> None:
        super()._put_file(key, path)
        if "model_" in key:
            self._put(key, path.read_bytes()[: path.stat().st_size // 2])


def test_a_store_that_kept_half_a_shard_is_not_sealed_and_its_last_good_step_stays(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_step(make_checkpoints(), 10)
    lied_to = make_checkpoints(attempt=2, remote=Lies(tmp_path / "store"))
    assert lied_to.begin(20)
    folder = lied_to.folder(20)
    write_step(folder, 20)
    reports = reports_of(lied_to, 20)
    for path in [entry.path for report in reports for entry in report.entries]:
        lied_to.remote.put_file(f"checkpoints/global_step_20/{path}", folder / path)
    lied_to.finalise(20, reports)
    assert (lied_to.num_failed_uploads, lied_to.complete_steps(lied_to.remote)) == (1, [10])
    assert f"{MODEL} has " in caplog.text
    assert lied_to.prune(keep_last=1) == [10]
    assert (lied_to.complete_steps(lied_to.local), lied_to.complete_steps(lied_to.remote)) == ([20], [10])


# ---- resuming ----------------------------------------------------------------------------------------------------------


def test_without_a_checkpoint_the_run_starts_from_the_beginning(make_checkpoints: Callable) -> None:
    decision = make_checkpoints().choose()
    assert (decision.step, decision.path, decision.rejected) == (None, None, ())
    assert decision.describe() == "starting from the beginning"


def test_the_newest_complete_step_is_taken_from_the_disk_and_a_new_machine_downloads_it(
    make_checkpoints: Callable, save_step: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = make_checkpoints()
    for step in (5, 20, 100):
        save_step(checkpoints, step, num_ranks=2)
    decision = make_checkpoints(attempt=2).choose()
    assert (decision.step, decision.source, decision.path) == (100, "local", checkpoints.folder(100))
    assert not caplog.records, "there is nothing to warn of"
    elsewhere = make_checkpoints(attempt=2, local="other-machine")
    decision = elsewhere.choose()
    assert (decision.step, decision.source) == (100, "store")
    assert read_content(decision.path) == step_content(100, num_ranks=2)
    assert make_checkpoints(attempt=3, local="other-machine").choose().source == "local"


@pytest.mark.parametrize("name", [MODEL, "data.pt"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "grow"])
def test_a_damaged_local_file_is_fetched_again_from_the_store(
    make_checkpoints: Callable, save_step: Callable, damage: str, name: str
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    path = checkpoints.folder(5) / name
    if damage == "flip":
        flip_a_bit(path)
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "truncate" else path.read_bytes() + b"x")
    decision = make_checkpoints(attempt=2).choose()
    assert (decision.step, decision.source) == (5, "store")
    assert read_content(decision.path) == step_content(5)
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
        decision = make_checkpoints(attempt=2).choose()
    assert (decision.step, decision.source) == (10, "store")
    assert "Input/output error" in decision.rejected[0]
    assert make_checkpoints(attempt=3).choose().source == "local", "mended on the way"


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
    with pytest.raises(StoreUnavailable, match="has arrived and cannot be read"):
        elsewhere.choose()


def test_a_step_damaged_everywhere_gives_way_to_the_one_before_and_both_reasons_are_named(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    checkpoints = make_checkpoints()
    for step in (5, 10):
        save_step(checkpoints, step)
    flip_a_bit(checkpoints.folder(10) / MODEL)
    (store_folder(tmp_path, 10) / MODEL).write_bytes(b"of attempt 2, killed within its upload")
    decision = make_checkpoints(attempt=2).choose()
    assert read_content(decision.path) == step_content(5)
    text = decision.describe()
    assert "resuming from step 5 (local)" in text
    assert f"global_step_10 (local): {MODEL} does not have the manifest's sha256" in text
    assert f"global_step_10 (store): {MODEL} has 38 bytes" in text


def test_a_step_is_taken_only_by_the_seal_and_the_experiment_that_saved_it(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    checkpoints = make_checkpoints(remote=None)
    for step in (5, 10, 15, 20):
        save_step(checkpoints, step)
    save_step(make_checkpoints(remote=None, spec_hash="hash-2"), 25)
    (checkpoints.folder(10) / "COMPLETE").unlink()
    (checkpoints.folder(15) / "manifest.json").unlink()
    manifest = json.loads((checkpoints.folder(20) / "manifest.json").read_text())
    manifest["files"][0]["sha256"] = hashlib.sha256(b"malice").hexdigest()
    (checkpoints.folder(20) / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    decision = make_checkpoints(attempt=2, remote=None).choose()
    assert decision.step == 5
    foreign, changed, half = decision.rejected
    assert "saved by another experiment (spec hash hash-2" in foreign
    assert "COMPLETE was not written for this manifest.json" in changed
    assert "COMPLETE without manifest.json" in half


@pytest.mark.parametrize(
    "lost", ["actor/optim_world_size_2_rank_0.pt", "actor/model_world_size_2_rank_1.pt", "data.pt"]
)
def test_a_sealed_step_without_all_that_a_resume_loads_is_not_taken(
    make_checkpoints: Callable, save_step: Callable, lost: str
) -> None:
    checkpoints = make_checkpoints(remote=None)
    for step in (5, 10):
        save_step(checkpoints, step, num_ranks=2)
    seal_without(checkpoints.folder(10), lost)
    decision = make_checkpoints(attempt=2, remote=None).choose()
    assert (decision.step, decision.rejected) == (5, (f"global_step_10 (local): it lists no {lost}",))


def entries(*names: str) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(path=name, size=1, sha256="", rank=-1 if "/" not in name else 0) for name in names)


@pytest.mark.parametrize(
    ("files", "gap"),
    [
        (entries("data.pt", *(f"actor/model_world_size_{n}_rank_0.pt" for n in (2, 4))), "shards saved by 2 and 4 ranks"),
        (entries("data.pt"), "shards saved by no ranks"),
        (entries("actor/model_world_size_9999999_rank_0.pt"), "it lists no data.pt"),
        (entries("data.pt", *(f"actor/{part}_world_size_1_rank_0.pt" for part in ("model", "optim", "extra_state")),
                 "actor/x_rank_1.pt"), "actor/x_rank_1.pt is listed under rank 0"),
    ],
)  # fmt: skip
def test_a_gap_is_named_whatever_number_of_ranks_a_name_claims(files: tuple[FileEntry, ...], gap: str) -> None:
    gaps = Manifest(step=1, attempt=1, spec_hash="h", files=files).find_gaps()
    assert gap in gaps[0]
    assert len(gaps) <= 5


@pytest.mark.parametrize(
    "change", [{"attempt": "1"}, {"step": True}, {"spec_hash": None}, {"attempt": 1e999}, {"version": 2}, {"files": []}]
)
def test_a_manifest_with_other_fields_is_none(change: dict) -> None:
    manifest = Manifest(step=5, attempt=1, spec_hash="h", files=entries("a"))
    with pytest.raises((CorruptRecord, CheckpointError)):
        Manifest.from_bytes(json.dumps(json.loads(manifest.to_bytes()) | change).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 1}', b"\xff", b"[" * 100_000])
def test_any_other_content_is_no_manifest(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        Manifest.from_bytes(data)


@pytest.mark.parametrize(
    "path",
    ["../../evil", "/etc/evil", "a/../../evil", "", "a//b", "./a", "a\\b", "a/\ud800", "a/\0b", "a/" + "b" * 300],
)
def test_a_manifest_path_that_leaves_its_folder_is_an_error(path: str) -> None:
    with pytest.raises(UnsafePath, match=r"inside its checkpoint|no file system takes it"):
        FileEntry(path=path, size=0, sha256="", rank=0)


def test_a_pickle_that_the_run_did_not_save_is_hidden_before_loading(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    foreign = checkpoints.folder(5) / "actor/extra_state_world_size_8_rank_3.pt"
    foreign.write_bytes(b"malice")
    decision = make_checkpoints(attempt=2).choose()
    assert read_content(decision.path) == step_content(5)
    assert (decision.path / ".unlisted" / foreign.relative_to(decision.path)).read_bytes() == b"malice"


def test_a_later_attempts_save_of_the_same_step_is_taken_unless_it_is_damaged(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    save_step(make_checkpoints(attempt=1), 5)
    save_step(make_checkpoints(attempt=2, local="other-machine"), 5, num_ranks=2)
    damaged = store_folder(tmp_path, 5) / "actor/model_world_size_2_rank_1.pt"
    flip_a_bit(damaged)
    decision = make_checkpoints(attempt=3).choose()
    assert (decision.source, decision.manifest.attempt) == ("local", 1)
    assert read_content(decision.path) == step_content(5), "no file of the damaged copy was moved in"
    flip_a_bit(damaged)
    decision = make_checkpoints(attempt=3).choose()
    assert (decision.source, decision.manifest.attempt) == ("store", 2)


def test_a_download_cut_short_continues_with_the_missing_files(make_checkpoints: Callable, save_step: Callable) -> None:
    save_step(make_checkpoints(), 5)
    elsewhere = make_checkpoints(attempt=2, local="other-machine")
    arrived = elsewhere.folder(5) / ".incoming/all" / MODEL
    arrived.parent.mkdir(parents=True)
    arrived.write_bytes(step_content(5)[MODEL])
    inode = arrived.stat().st_ino
    decision = elsewhere.choose()
    assert read_content(decision.path) == step_content(5)
    assert (decision.path / MODEL).stat().st_ino == inode
    assert list((decision.path / ".incoming").iterdir()) == []


def test_an_unreachable_store_stops_the_choice_instead_of_losing_steps(
    make_checkpoints: Callable, save_step: Callable, away: Callable
) -> None:
    save_step(make_checkpoints(), 5)
    with away(), pytest.raises(StoreRefused):
        make_checkpoints(attempt=2).choose()


# ---- retention ---------------------------------------------------------------------------------------------------------


def folders(tmp_path: Path, place: str) -> list[int]:
    names = [path.name for path in (tmp_path / place / "checkpoints").iterdir()]
    return sorted(int(name.removeprefix("global_step_")) for name in names)


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "left"),
    [(1, None, [40]), (2, 20, [20, 30, 40]), (9, None, [10, 20, 30, 40]), (None, 20, [10, 20, 30, 40])],
)
def test_the_last_ones_and_the_multiples_stay_in_both_places(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, keep_last: int, keep_every: int, left: list[int]
) -> None:
    checkpoints = make_checkpoints()
    for step in range(10, 50, 10):
        save_step(checkpoints, step)
    deleted = checkpoints.prune(keep_last=keep_last, keep_every=keep_every)
    assert folders(tmp_path, "local") == folders(tmp_path, "store") == checkpoints.complete_steps() == left
    assert sorted(deleted + left) == list(range(10, 50, 10))


def test_the_step_resumed_from_and_a_step_being_saved_stay(make_checkpoints: Callable, save_step: Callable) -> None:
    save_step(make_checkpoints(), 10)
    resumed = make_checkpoints(attempt=2)
    resumed.choose()
    for step in (20, 30):
        save_step(resumed, step)
    resumed.begin(40)
    write_step(resumed.folder(40), 40)
    assert resumed.prune(keep_last=1) == [20]
    assert resumed.complete_steps() == [10, 30]
    assert read_content(resumed.folder(40)) == step_content(40)


def test_a_deletion_cut_short_is_finished_by_the_next_one(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    checkpoints = make_checkpoints()
    for step in (10, 20):
        save_step(checkpoints, step)
    for place in ("local", "store"):
        (tmp_path / place / "checkpoints/global_step_10/COMPLETE").unlink()
        (tmp_path / place / "checkpoints/global_step_10/data.pt").unlink()
    (tmp_path / "local/checkpoints/.opd-tmp-left").mkdir()
    assert make_checkpoints(attempt=2).prune(keep_last=5) == [10]
    assert folders(tmp_path, "local") == folders(tmp_path, "store") == [20]


def test_a_damaged_step_that_was_passed_over_does_not_cost_the_steps_saved_after_it(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    checkpoints = make_checkpoints(remote=None)
    for step in (30, 40):
        save_step(checkpoints, step)
    flip_a_bit(checkpoints.folder(40) / MODEL)
    resumed = make_checkpoints(attempt=2, remote=None)
    assert resumed.choose().step == 30
    for step in (33, 35):
        save_step(resumed, step)
        resumed.prune(keep_last=1)
    assert make_checkpoints(attempt=3, remote=None).choose().step == 35


def test_the_step_just_sealed_stays_next_to_later_ones_of_a_run_that_was_begun_anew(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    for step in (30, 40):
        save_step(make_checkpoints(), step)
    anew = make_checkpoints(attempt=2)
    save_step(anew, 5)
    anew.prune(keep_last=1)
    assert 5 in anew.complete_steps(anew.local)
    assert 5 in anew.complete_steps(anew.remote)


@pytest.mark.parametrize("damage", ["manifest", "optimizer", "experiment", "cut short"])
def test_a_step_that_no_resume_would_take_does_not_count(
    make_checkpoints: Callable, save_step: Callable, damage: str
) -> None:
    checkpoints = make_checkpoints(remote=None)
    for step in (10, 20):
        save_step(checkpoints, step)
    folder = checkpoints.folder(20)
    if damage == "manifest":
        flip_a_bit(folder / "manifest.json")
    elif damage == "optimizer":
        seal_without(folder, "actor/optim_world_size_1_rank_0.pt")
    elif damage == "cut short":
        (folder / "data.pt").write_bytes(b"")
    else:
        manifest = Manifest.from_bytes((folder / "manifest.json").read_bytes())
        foreign = dataclasses.replace(manifest, spec_hash="hash-2")
        (folder / "manifest.json").write_bytes(foreign.to_bytes())
        (folder / "COMPLETE").write_bytes(foreign.seal())
    assert make_checkpoints(attempt=2, remote=None).prune(keep_last=1) == []


@pytest.mark.parametrize("limits", [{"keep_last": 0}, {"keep_last": 1, "keep_every": 0}])
def test_keeping_none_is_an_error(make_checkpoints: Callable, limits: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match="at least 1"):
        make_checkpoints().prune(**limits)
