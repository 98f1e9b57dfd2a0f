"""Retention: what may go goes, COMPLETE first, and never what a resume needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.conftest import write_step
from tests.runs.files import MODEL, flip_a_bit, seal_without

from opd.errors import CheckpointError
from opd.runs.manifest import DRIVER_RANK
from opd.runs.shards import upload_shards
from opd.store.local import LocalStore


def folders(tmp_path: Path, place: str) -> list[int]:
    names = [path.name for path in (tmp_path / place / "checkpoints").iterdir()]
    return sorted(int(name.removeprefix("global_step_")) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep_last", "keep_every", "left"),
    [
        (1, None, [60]),
        (2, None, [50, 60]),
        (1, 20, [20, 40, 60]),
        (2, 30, [30, 50, 60]),
        (9, None, [10, 20, 30, 40, 50, 60]),
        (None, 20, [10, 20, 30, 40, 50, 60]),
    ],
)
def test_the_last_ones_and_the_multiples_stay_in_both_places(
    make_checkpoints: Callable,
    save_step: Callable,
    tmp_path: Path,
    keep_last: int | None,
    keep_every: int | None,
    left: list[int],
) -> None:
    checkpoints = make_checkpoints()
    for step in range(10, 70, 10):
        save_step(checkpoints, step)
    deleted = checkpoints.prune(keep_last=keep_last, keep_every=keep_every)
    assert folders(tmp_path, "local") == folders(tmp_path, "store") == checkpoints.complete_steps() == left
    assert sorted(deleted + left) == list(range(10, 70, 10))


def test_the_step_resumed_from_stays(make_checkpoints: Callable, save_step: Callable) -> None:
    save_step(make_checkpoints(), 10)
    resumed = make_checkpoints(attempt=2)
    resumed.choose()
    for step in (20, 30):
        save_step(resumed, step)
    assert resumed.prune(keep_last=1) == [20]
    assert resumed.complete_steps() == [10, 30]


def test_a_step_being_saved_stays_and_does_not_count_as_kept(make_checkpoints: Callable, save_step: Callable) -> None:
    checkpoints = make_checkpoints()
    for step in (10, 20):
        save_step(checkpoints, step)
    checkpoints.begin(30)
    checkpoints.folder(30).mkdir(parents=True)
    (checkpoints.folder(30) / "data.pt").write_bytes(b"half")
    assert checkpoints.prune(keep_last=1) == [10]
    assert checkpoints.complete_steps() == [20]
    assert (checkpoints.folder(30) / "data.pt").exists()


def test_complete_goes_first_and_the_manifest_last(
    make_checkpoints: Callable, save_step: Callable, tmp_path: Path
) -> None:
    class Recorder(LocalStore):
        deleted: list[str] = []  # noqa: RUF012 - one list for the store and its children

        def _delete(self, key: str) -> None:
            self.deleted.append(key.rpartition("/")[2])
            super()._delete(key)

        def _delete_tree(self, prefix: str) -> None:
            left = [info.key.rpartition("/")[2] for info in self._list(prefix)]
            self.deleted.extend(left)
            super()._delete_tree(prefix)

    store = Recorder(tmp_path / "store")
    checkpoints = make_checkpoints(remote=store)
    for step in (10, 20):
        save_step(checkpoints, step)
    Recorder.deleted.clear()
    checkpoints.prune(keep_last=1)
    assert Recorder.deleted[0] == "COMPLETE"
    assert Recorder.deleted[-1] == "manifest.json"
    assert len(Recorder.deleted) == 2 + 5


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
    # keep_last 1 and a flipped bit in step 40: what is sealed from then on stays until step 40 is saved anew.
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
    save_step(resumed, 40)
    assert resumed.prune(keep_last=1) == [35]
    assert resumed.complete_steps() == [30, 40]


def test_the_step_just_sealed_stays_beside_later_ones_of_a_run_that_was_begun_anew(
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
def test_what_no_resume_would_take_does_not_count(make_checkpoints: Callable, save_step: Callable, damage: str) -> None:
    checkpoints = make_checkpoints(remote=None)
    for step in (10, 20, 30):
        save_step(checkpoints, step)
    folder = checkpoints.folder(20)
    if damage == "manifest":
        flip_a_bit(folder / "manifest.json")
    elif damage == "optimizer":
        seal_without(folder, "actor/optim_world_size_1_rank_0.pt")
    elif damage == "experiment":
        save_step(make_checkpoints(remote=None, spec_hash="hash-2"), 20)
    else:
        (folder / MODEL).write_bytes(b"half")
    assert make_checkpoints(attempt=2, remote=None).prune(keep_last=2) == [20]
    assert checkpoints.complete_steps() == [10, 30]


class Lies(LocalStore):
    """A store that says yes to every upload and keeps half of the models."""

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
    reports = [upload_shards(rank=rank, step=20, step_dir=folder, store_url=None) for rank in (DRIVER_RANK, 0)]
    for path in [entry.path for report in reports for entry in report.entries]:
        lied_to.remote.put_file(f"checkpoints/global_step_20/{path}", folder / path)
    lied_to.finalise(20, reports)
    assert (lied_to.num_failed_uploads, lied_to.complete_steps(lied_to.remote)) == (1, [10])
    assert f"{MODEL} has " in caplog.text
    # As an older version sealed it: its size is compared before anything is deleted for it.
    for name in ("manifest.json", "COMPLETE"):
        lied_to.remote.put_file(f"checkpoints/global_step_20/{name}", folder / name)
    assert lied_to.prune(keep_last=1) == [10]
    assert (lied_to.complete_steps(lied_to.local), lied_to.complete_steps(lied_to.remote)) == ([20], [10, 20])


@pytest.mark.parametrize("limits", [{"keep_last": 0}, {"keep_last": 1, "keep_every": 0}])
def test_keeping_none_is_refused(make_checkpoints: Callable, limits: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match="at least 1"):
        make_checkpoints().prune(**limits)
