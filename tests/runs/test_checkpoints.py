"""Checkpoints: sealed whole or not at all, resumed from only by their hashes, kept as long as a resume needs them."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.conftest import chosen, read_content, step_content, upload_missing, write_step
from tests.runs.files import MODEL, flip_a_bit, reseal, store_folder

from opd.errors import CheckpointError, Overtaken, StoreRefused
from opd.runs.checkpoints import Checkpoints
from opd.runs.manifest import DRIVER_RANK, FileEntry, complete_steps
from opd.runs.shards import ShardReport, upload_shards
from opd.store.local import LocalStore

ENTRY = FileEntry(path="data.pt", size=0, sha256="", rank=0)


def reports_of(checkpoints: Checkpoints, step: int, ranks=(DRIVER_RANK, 0), *, url: str | None = None):
    folder = checkpoints.folder(step)
    return [upload_shards(rank=rank, step=step, step_dir=folder, store_url=url) for rank in ranks]


def complete(checkpoints: Checkpoints) -> list[list[int]]:
    """The complete steps in each place."""
    return [complete_steps([place]) for place in checkpoints.places]


# ---- saving ------------------------------------------------------------------------------------------------------------


def test_a_saved_step_is_complete_in_both_places_and_its_manifest_lists_every_file(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    checkpoints = make_checkpoints(attempt=3)
    save_step(checkpoints, 5, num_ranks=2)
    content = step_content(5, num_ranks=2)
    assert complete(checkpoints) == [[5], [5]]
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


def test_a_rank_syncs_the_names_of_all_folders_above_its_files(
    make_checkpoints: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced = make_checkpoints().folder(5), list[Path]()
    write_step(folder, 5)
    for module in ("opd.store.durable", "opd.runs.shards"):
        monkeypatch.setattr(f"{module}.fsync_folder", synced.append)
    upload_shards(rank=0, step=5, step_dir=folder, store_url=None)
    assert {*(folder / "actor/huggingface").parents, folder / "actor/huggingface"} == set(synced)


@pytest.mark.parametrize("place", ["local", "remote"])
def test_an_overtaken_attempt_seals_and_deletes_nothing(
    make_checkpoints: Callable, save_step: Callable, place: str
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    assert checkpoints.begin(10)
    getattr(checkpoints, place).put_json("attempts/0002/owner.json", {})
    for forbidden in (
        lambda: checkpoints.finalise(10, [ShardReport(entries=(ENTRY,))]),
        lambda: checkpoints.begin(5),
        lambda: checkpoints.prune(keep_last=1),
    ):
        with pytest.raises(Overtaken):
            forbidden()
    assert complete(checkpoints) == [[5], [5]]


@pytest.mark.parametrize("place", ["local", "remote"])
def test_an_attempt_that_is_overtaken_between_manifest_and_seal_does_not_seal(
    make_checkpoints: Callable, tmp_path: Path, place: str
) -> None:
    class Overtakes(LocalStore):
        """Another attempt begins at the very moment at which a manifest is written here."""

        def _put(self, key: str, data: bytes) -> None:
            super()._put(key, data)
            if key.endswith("manifest.json"):
                super()._put("attempts/0002/owner.json", b"{}")

    checkpoints: Checkpoints = make_checkpoints()
    setattr(checkpoints, place, Overtakes(tmp_path / ("local" if place == "local" else "store")))
    assert checkpoints.begin(5)
    write_step(checkpoints.folder(5), 5)
    with pytest.raises(Overtaken):
        checkpoints.finalise(5, reports_of(checkpoints, 5, url=checkpoints.remote.url))
    assert complete_steps([getattr(checkpoints, place)]) == []


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
            upload_missing(checkpoints)
    assert "global_step_15 is complete on the local disk only" in caplog.text
    flip_a_bit(checkpoints.folder(10) / MODEL)
    assert upload_missing(checkpoints) == [15]
    assert f"global_step_10 is not in the store: {MODEL} does not have" in caplog.text
    assert read_content(store_folder(tmp_path, 15)) == step_content(15)


def test_a_newer_save_on_the_disk_replaces_an_earlier_attempts_copy_in_the_store(
    make_checkpoints: Callable, save_step: Callable, away: Callable
) -> None:
    save_step(make_checkpoints(attempt=1, local="other-machine"), 5)
    newer: Checkpoints = make_checkpoints(attempt=2)
    with away():
        save_step(newer, 5)
    assert upload_missing(newer) == [5]
    assert upload_missing(newer) == []
    assert chosen(make_checkpoints(attempt=3, local="third-machine")).manifest.attempt == 2


def test_the_step_resumed_from_is_not_saved_again(make_checkpoints: Callable, save_step: Callable) -> None:
    save_step(make_checkpoints(), 5)
    resumed = make_checkpoints(attempt=2)
    assert chosen(resumed).step == 5
    assert resumed.begin(5) is False
    assert complete(resumed) == [[5], [5]]


@pytest.mark.parametrize("silent", [DRIVER_RANK, 1, "optimizer", "all", "doubled"])
def test_a_step_without_each_part_once_is_not_sealed(make_checkpoints: Callable, silent: object) -> None:
    checkpoints = make_checkpoints(remote=None)
    assert checkpoints.begin(1)
    write_step(checkpoints.folder(1), 1, num_ranks=2)
    if silent == "optimizer":
        (checkpoints.folder(1) / "actor/optim_world_size_2_rank_0.pt").unlink()
    reports = reports_of(checkpoints, 1, [rank for rank in (DRIVER_RANK, 0, 1) if rank != silent])
    reports = [] if silent == "all" else reports * 2 if silent == "doubled" else reports
    why = {"all": "lists shards saved by no ranks", "doubled": "lists a file twice"}.get(
        str(silent), "no run could resume from it: it lists no .*save_contents"
    )
    with pytest.raises(CheckpointError, match=why):
        checkpoints.finalise(1, reports)
    assert complete(checkpoints) == [[]]


def test_a_store_that_kept_half_a_shard_is_not_sealed_and_its_last_good_step_stays(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Lies(LocalStore):
        """A store that accepts every upload and keeps half of the models."""

        def _put_file(self, key: str, path: Path) -> None:
            super()._put_file(key, path)
            if "model_" in key:
                self._put(key, path.read_bytes()[: path.stat().st_size // 2])

    save_step(make_checkpoints(), 10)
    lied_to = make_checkpoints(attempt=2, remote=Lies(tmp_path / "store"))
    assert lied_to.begin(20)
    folder = lied_to.folder(20)
    write_step(folder, 20)
    reports = reports_of(lied_to, 20)
    for path in [entry.path for report in reports for entry in report.entries]:
        lied_to.remote.put_file(f"checkpoints/global_step_20/{path}", folder / path)
    lied_to.finalise(20, reports)
    assert (lied_to.num_failed_uploads, f"{MODEL} has " in caplog.text) == (1, True)
    assert lied_to.prune(keep_last=1) == [10]
    assert complete(lied_to) == [[20], [10]]


# ---- retention ---------------------------------------------------------------------------------------------------------


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
    assert complete(checkpoints) == [left, left]
    for place in ("local", "store"):
        assert sorted(path.name for path in (tmp_path / place / "checkpoints").iterdir()) == [
            f"global_step_{n}" for n in left
        ]
    assert sorted(deleted + left) == list(range(10, 50, 10))


def test_the_step_resumed_from_and_a_step_being_saved_stay(make_checkpoints: Callable, save_step: Callable) -> None:
    save_step(make_checkpoints(), 10)
    resumed = make_checkpoints(attempt=2)
    chosen(resumed)
    for step in (20, 30):
        save_step(resumed, step)
    resumed.begin(40)
    write_step(resumed.folder(40), 40)
    assert resumed.prune(keep_last=1) == [20]
    assert complete(resumed) == [[10, 30], [10, 30]]
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
    for place in ("local", "store"):
        assert [path.name for path in (tmp_path / place / "checkpoints").iterdir()] == ["global_step_20"]


def test_the_step_just_sealed_stays_next_to_later_ones_of_a_run_that_was_begun_anew(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    for step in (30, 40):
        save_step(make_checkpoints(), step)
    anew = make_checkpoints(attempt=2)
    save_step(anew, 5)
    anew.prune(keep_last=1)
    assert all(5 in steps for steps in complete(anew))


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
        reseal(folder, lost="actor/optim_world_size_1_rank_0.pt")
    elif damage == "experiment":
        reseal(folder, spec_hash="hash-2")
    else:
        (folder / "data.pt").write_bytes(b"")
    assert make_checkpoints(attempt=2, remote=None).prune(keep_last=1) == []
