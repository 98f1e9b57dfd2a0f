"""Retention: what may go goes, COMPLETE first, and never what a resume needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opd.runs.errors import CheckpointError
from opd.runs.store_local import LocalStore


def folders(tmp_path: Path, place: str) -> list[int]:
    names = [path.name for path in (tmp_path / place / "checkpoints").iterdir()]
    return sorted(int(name.removeprefix("global_step_")) for name in names)


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


def test_an_unfinished_step_of_a_killed_attempt_stays_unfinished_and_uncounted(
    make_checkpoints: Callable, save_step: Callable
) -> None:
    checkpoints = make_checkpoints()
    for step in (10, 20, 30):
        save_step(checkpoints, step)
    for store in (checkpoints.local, checkpoints.remote):
        store.delete("checkpoints/global_step_30/COMPLETE")
    assert make_checkpoints(attempt=2).prune(keep_last=2) == []


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


@pytest.mark.parametrize("limits", [{"keep_last": 0}, {"keep_last": 1, "keep_every": 0}])
def test_keeping_none_is_refused(make_checkpoints: Callable, limits: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match="at least 1"):
        make_checkpoints().prune(**limits)
