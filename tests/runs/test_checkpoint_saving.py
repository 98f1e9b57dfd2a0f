"""Saving checkpoints: a step is complete in both places or not at all, whoever is overtaken, killed or cut off."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.conftest import write_step
from tests.runs.files import MODEL, flip_a_bit, store_folder

from opd.errors import CheckpointError, Overtaken, StoreRefused
from opd.runs.checkpoints import Checkpoints
from opd.runs.manifest import DRIVER_RANK, FileEntry
from opd.runs.shards import ShardReport, upload_shards
from opd.store.local import LocalStore


def test_a_saved_step_is_complete_in_both_places_with_the_same_bytes(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, saved_content: Callable, loaded_content: Callable
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5, num_ranks=2)
    assert checkpoints.complete_steps(checkpoints.local) == checkpoints.complete_steps(checkpoints.remote) == [5]
    assert loaded_content(store_folder(tmp_path, 5)) == saved_content(5, num_ranks=2)
    assert loaded_content(checkpoints.folder(5)) == saved_content(5, num_ranks=2)


def test_the_manifest_lists_every_file_with_its_size_hash_and_rank(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, saved_content: Callable
) -> None:
    save_step(make_checkpoints(attempt=3), 5, num_ranks=2)
    record = json.loads((store_folder(tmp_path, 5) / "manifest.json").read_text())
    assert (record["step"], record["attempt"], record["spec_hash"]) == (5, 3, "hash-1")
    content = saved_content(5, num_ranks=2)
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
    # `place` is where the newer attempt is known: the shared disk, or the object store.
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    assert checkpoints.begin(10)
    getattr(checkpoints, place).put_json("attempts/0002/owner.json", {})
    entry = FileEntry(path="data.pt", size=0, sha256="", rank=0)
    for forbidden in (
        lambda: checkpoints.finalise(10, [ShardReport(rank=0, entries=(entry,))]),
        lambda: checkpoints.begin(5),
        lambda: checkpoints.prune(keep_last=1),
    ):
        with pytest.raises(Overtaken):
            forbidden()
    assert checkpoints.complete_steps(checkpoints.local) == checkpoints.complete_steps(checkpoints.remote) == [5]


def test_saving_goes_on_locally_while_the_store_is_away_and_is_made_up_for_later(
    make_checkpoints: Callable,
    save_step: Callable,
    tmp_path: Path,
    saved_content: Callable,
    loaded_content: Callable,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoints: Checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("no folder: the store is away")
    for step in (10, 15):
        save_step(checkpoints, step)
    assert checkpoints.prune(keep_last=2) == [5]
    assert checkpoints.num_failed_uploads == 2
    assert "global_step_15 is complete on the local disk only" in caplog.text
    with pytest.raises(StoreRefused):
        checkpoints.upload_missing()

    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    assert [manifest.step for manifest in checkpoints.missing_in_store()] == [10, 15]
    flip_a_bit(checkpoints.folder(10) / MODEL)
    assert checkpoints.upload_missing() == [15]
    assert f"global_step_10 is not in the store: {MODEL} does not have" in caplog.text
    assert loaded_content(store_folder(tmp_path, 15)) == saved_content(15)


def test_the_old_copy_of_a_step_being_replaced_is_never_taken_half(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    # begin() could not reach the store, whose copy of step 10 stays sealed; then the new files overwrote some of it.
    save_step(make_checkpoints(), 5)
    save_step(make_checkpoints(), 10)
    (store_folder(tmp_path, 10) / MODEL).write_bytes(b"of attempt 2, which was killed here")
    decision = make_checkpoints(attempt=3, local="other-machine").choose()
    assert decision.step == 5
    assert f"global_step_10 (store): {MODEL} has 35 bytes" in decision.rejected[0]


def test_the_step_resumed_from_is_not_saved_again(make_checkpoints: Callable, save_step: Callable) -> None:
    save_step(make_checkpoints(), 5)
    resumed = make_checkpoints(attempt=2)
    assert resumed.choose().step == 5
    assert resumed.begin(5) is False
    assert resumed.complete_steps() == [5]


def test_a_file_acknowledged_twice_or_no_file_at_all_is_refused(make_checkpoints: Callable) -> None:
    checkpoints = make_checkpoints()
    entry = FileEntry(path="data.pt", size=0, sha256="", rank=0)
    with pytest.raises(CheckpointError, match=r"listed twice: data\.pt"):
        checkpoints.finalise(1, [ShardReport(rank=0, entries=(entry, entry))])
    with pytest.raises(CheckpointError, match="no files"):
        checkpoints.finalise(1, [ShardReport(rank=0, entries=())])


@pytest.mark.parametrize("silent", [DRIVER_RANK, 0, 1])
def test_a_step_that_not_everybody_reported_is_not_sealed(make_checkpoints: Callable, silent: int) -> None:
    checkpoints = make_checkpoints(remote=None)
    assert checkpoints.begin(1)
    write_step(checkpoints.folder(1), 1, num_ranks=2)
    reports = [
        upload_shards(rank=rank, step=1, step_dir=checkpoints.folder(1), store_url=None)
        for rank in (DRIVER_RANK, 0, 1)
        if rank != silent
    ]
    with pytest.raises(CheckpointError, match="global_step_1 is not sealed, no run could resume from it: it lists no "):
        checkpoints.finalise(1, reports)
    assert checkpoints.complete_steps() == []


def test_a_step_saved_without_its_optimizer_is_not_sealed(make_checkpoints: Callable) -> None:
    checkpoints = make_checkpoints(remote=None)
    assert checkpoints.begin(1)
    write_step(checkpoints.folder(1), 1)
    (checkpoints.folder(1) / "actor/optim_world_size_1_rank_0.pt").unlink()
    reports = [
        upload_shards(rank=rank, step=1, step_dir=checkpoints.folder(1), store_url=None) for rank in (DRIVER_RANK, 0)
    ]
    with pytest.raises(CheckpointError, match=r"lists no actor/optim_world_size_1_rank_0\.pt.*save_contents"):
        checkpoints.finalise(1, reports)


class Overtakes(LocalStore):
    """Another attempt begins at the very moment at which a manifest is written here."""

    def _put(self, key: str, data: bytes) -> None:
        super()._put(key, data)
        if key.endswith("manifest.json"):
            super()._put("attempts/0002/owner.json", b"{}")


@pytest.mark.parametrize("place", ["local", "remote"])
def test_who_is_overtaken_between_manifest_and_seal_does_not_seal(
    make_checkpoints: Callable, tmp_path: Path, place: str
) -> None:
    checkpoints: Checkpoints = make_checkpoints()
    setattr(checkpoints, place, Overtakes(tmp_path / ("local" if place == "local" else "store")))
    assert checkpoints.begin(5)
    write_step(checkpoints.folder(5), 5)
    reports = [
        upload_shards(rank=rank, step=5, step_dir=checkpoints.folder(5), store_url=checkpoints.remote.url)
        for rank in (DRIVER_RANK, 0)
    ]
    with pytest.raises(Overtaken):
        checkpoints.finalise(5, reports)
    assert checkpoints.complete_steps(getattr(checkpoints, place)) == []
