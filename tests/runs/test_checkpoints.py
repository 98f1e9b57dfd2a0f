"""Checkpoints: only a sealed one whose hashes hold is ever loaded, and a damaged one is mended or passed over aloud."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opd.runs.checkpoints import Checkpoints
from opd.runs.errors import CheckpointError, CorruptRecord, IncompleteCheckpoint, Overtaken, StoreRefused, UnsafePath
from opd.runs.manifest import DRIVER_RANK, FileEntry, Manifest, files_of_rank
from opd.runs.shards import ShardReport, fetch_shards, upload_shards

MODEL = "actor/model_world_size_1_rank_0.pt"


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def store_folder(tmp_path: Path, step: int) -> Path:
    return tmp_path / f"store/checkpoints/global_step_{step}"


# ---- saving -------------------------------------------------------------------------------------------------------


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


def test_ranks_answer_for_disjoint_files_and_together_for_all(
    tmp_path: Path, make_checkpoints: Callable, save_step: Callable
) -> None:
    checkpoints = make_checkpoints(remote=None)
    save_step(checkpoints, 1, num_ranks=12)
    folder = checkpoints.folder(1)
    (folder / "actor/.hidden").write_text("")
    owned = [path for rank in range(DRIVER_RANK, 12) for path in files_of_rank(folder, rank)]
    assert len(owned) == len(set(owned)) == 2 + 3 * 12
    assert files_of_rank(folder, 1) == [
        f"actor/{part}_world_size_12_rank_1.pt" for part in ("extra_state", "model", "optim")
    ]


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


def test_saving_a_step_again_takes_the_seal_and_the_old_files_off_first(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5, num_ranks=4)
    assert checkpoints.begin(5)
    assert checkpoints.complete_steps() == []
    assert not checkpoints.folder(5).exists()
    save_step(checkpoints, 5, num_ranks=2)
    assert not list(store_folder(tmp_path, 5).rglob("*world_size_4*"))


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


# ---- choosing -----------------------------------------------------------------------------------------------------


def test_without_a_checkpoint_the_run_starts_from_the_beginning(make_checkpoints: Callable) -> None:
    decision = make_checkpoints().choose()
    assert (decision.step, decision.path, decision.rejected) == (None, None, ())
    assert decision.describe() == "starting from the beginning"


def test_the_newest_complete_step_is_taken_from_the_local_disk(make_checkpoints: Callable, save_step: Callable) -> None:
    checkpoints = make_checkpoints()
    for step in (5, 20, 100):
        save_step(checkpoints, step)
    decision = make_checkpoints(attempt=2).choose()
    assert (decision.step, decision.source, decision.path) == (100, "local", checkpoints.folder(100))


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


def test_only_the_damaged_file_is_downloaded(make_checkpoints: Callable, save_step: Callable) -> None:
    checkpoints = make_checkpoints()
    save_step(checkpoints, 5)
    untouched = checkpoints.folder(5) / "data.pt"
    before = untouched.stat().st_ino
    flip_a_bit(checkpoints.folder(5) / MODEL)
    make_checkpoints(attempt=2).choose()
    assert untouched.stat().st_ino == before


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


def test_if_every_step_is_damaged_the_decision_lists_them_all(make_checkpoints: Callable, save_step: Callable) -> None:
    checkpoints = make_checkpoints(remote=None)
    for step in (5, 10):
        save_step(checkpoints, step)
        flip_a_bit(checkpoints.folder(step) / MODEL)
    decision = make_checkpoints(attempt=2, remote=None).choose()
    assert decision.step is None
    assert [reason.split()[0] for reason in decision.rejected] == ["global_step_10", "global_step_5"]


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


@pytest.mark.parametrize("path", ["../../evil.pt", "/etc/evil.pt", "actor/../../evil.pt", "", "a//b", "./a", "a\\b"])
def test_a_manifest_path_that_leaves_its_folder_is_refused(path: str) -> None:
    with pytest.raises(UnsafePath, match="inside its checkpoint"):
        FileEntry(path=path, size=0, sha256="", rank=0)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 1}', b'{"version": 2, "files": []}', b"\xff"])
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


def test_ranks_that_share_a_disk_fetch_at_the_same_time(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path, saved_content: Callable, loaded_content: Callable
) -> None:
    save_step(make_checkpoints(), 5, num_ranks=8)
    manifest = Manifest.from_bytes((store_folder(tmp_path, 5) / "manifest.json").read_bytes())
    target, url = tmp_path / "other-machine/checkpoints/global_step_5", str(tmp_path / "store")
    with ThreadPoolExecutor(9) as pool:
        answers = pool.map(
            lambda rank: fetch_shards(step_dir=target, manifest=manifest, store_url=url, ranks=[rank]),
            range(DRIVER_RANK, 8),
        )
        assert list(answers) == [[]] * 9
    assert loaded_content(target) == saved_content(5, num_ranks=8)


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


def test_two_ranks_with_disks_of_their_own_save_and_resume(
    make_checkpoints: Callable, tmp_path: Path, saved_content: Callable
) -> None:
    driver: Checkpoints = make_checkpoints(local="machine-0")
    assert driver.begin(5)
    reports = []
    for rank in range(2):
        folder = tmp_path / f"machine-{rank}/checkpoints/global_step_5"
        for name, data in saved_content(5, num_ranks=2).items():
            is_own = f"rank_{rank}." in name or (rank == 0 and "rank_" not in name)
            if is_own:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
        for owner in (DRIVER_RANK, 0) if rank == 0 else (1,):
            reports.append(upload_shards(rank=owner, step=5, step_dir=folder, store_url=driver.remote.url))
    driver.finalise(5, reports)

    flip_a_bit(tmp_path / "machine-1/checkpoints/global_step_5/actor/model_world_size_2_rank_1.pt")
    asked: list[tuple[int, str | None]] = []

    def fetch(manifest: Manifest, store_url: str | None) -> list[str]:
        problems = []
        for rank in range(2):
            asked.append((rank, store_url))
            problems += fetch_shards(
                step_dir=tmp_path / f"machine-{rank}/checkpoints/global_step_5",
                manifest=manifest,
                store_url=store_url,
                ranks=[rank] if rank else [DRIVER_RANK, 0],
            )
        return problems

    decision = make_checkpoints(attempt=2, local="machine-0").choose(fetch=fetch)
    assert (decision.step, decision.source) == (5, "store")
    assert [url is None for _, url in asked] == [True, True, False, False]
    mended = tmp_path / "machine-1/checkpoints/global_step_5/actor/model_world_size_2_rank_1.pt"
    assert mended.read_bytes() == saved_content(5, num_ranks=2)["actor/model_world_size_2_rank_1.pt"]
    assert not (tmp_path / "machine-0/checkpoints/global_step_5/actor/model_world_size_2_rank_1.pt").exists()


def test_a_named_step_is_given_or_refused_with_its_reason(make_checkpoints: Callable, save_step: Callable) -> None:
    checkpoints = make_checkpoints(remote=None)
    for step in (5, 10, 15):
        save_step(checkpoints, step)
    flip_a_bit(checkpoints.folder(10) / MODEL)
    (checkpoints.folder(15) / "COMPLETE").unlink()
    assert checkpoints.require(5).step == 5
    with pytest.raises(IncompleteCheckpoint, match=r"global_step_10 .* does not have the manifest's sha256"):
        checkpoints.require(10)
    with pytest.raises(IncompleteCheckpoint, match=r"global_step_15 .*no COMPLETE marker.*complete steps: 5, 10"):
        checkpoints.require(15)


# ---- kills --------------------------------------------------------------------------------------------------------

SAVER = """
import sys
from pathlib import Path
from conftest import write_step
from opd.runs.checkpoints import Checkpoints
from opd.runs.manifest import DRIVER_RANK
from opd.runs.shards import upload_shards
from opd.runs.store_local import LocalStore
local, remote, attempt = sys.argv[1:]
checkpoints = Checkpoints(
    local=LocalStore(Path(local)), remote=LocalStore(Path(remote)), attempt=int(attempt), spec_hash="h",
)
step = checkpoints.choose().step or 0
print("chosen", step, flush=True)
while True:
    step += 1
    assert checkpoints.begin(step)
    write_step(checkpoints.folder(step), step)
    reports = [
        upload_shards(rank=rank, step=step, step_dir=checkpoints.folder(step), store_url=remote)
        for rank in (DRIVER_RANK, 0)
    ]
    checkpoints.finalise(step, reports)
    print("complete", step, flush=True)
    checkpoints.prune(keep_last=2)
"""


def test_kills_at_any_moment_of_saving_and_pruning_lose_no_complete_step(
    start_child: Callable,
    tmp_path: Path,
    until: Callable,
    make_checkpoints: Callable,
    saved_content: Callable,
    loaded_content: Callable,
) -> None:
    reached = 0
    for attempt, delay_ms in enumerate((0, 3, 7, 11, 17, 23), start=1):
        child = start_child(SAVER, tmp_path / "local", tmp_path / "store", attempt)
        until(lambda child=child: child.text.count("complete") >= 2)
        time.sleep(delay_ms / 1000)
        child.process.kill()
        child.wait()
        lines = child.text.splitlines()
        assert lines[0] == f"chosen {reached}"
        # The kill may hit between the seal and the line that tells of it.
        last_told = (
            int(lines[-1].split()[1]) if lines[-1].startswith("complete") and child.text.endswith("\n") else None
        )
        decision = make_checkpoints(attempt=attempt + 1).choose()
        assert last_told is None or decision.step in (last_told, last_told + 1)
        assert decision.rejected == ()
        assert loaded_content(decision.path) == saved_content(decision.step)
        reached = decision.step
