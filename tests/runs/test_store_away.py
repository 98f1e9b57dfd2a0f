"""A run whose store is away: it trains on, keeps its work on disk, seals nothing too early and says what it could not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.files import logged_steps

from opd.errors import StoreError
from opd.store.local import LocalStore


def point(link: Path, target: Path) -> None:
    """Make the link, or swap it in one step: a trainer that looks in between would make the folder anew."""
    new = link.with_name("new-link")
    new.symlink_to(target)
    new.replace(link)


class Away:
    """A store behind a link, which `goes` and `returns` swap in one step: it is a file while it is away."""

    def __init__(self, folder: Path) -> None:
        self.link, self.real, self.file = folder / "store", folder / "real", folder / "away"
        self.real.mkdir()
        self.file.write_text("no folder: the store is away")
        self.returns()

    def goes(self) -> None:
        point(self.link, self.file)

    def returns(self) -> None:
        point(self.link, self.real)


def test_a_checkpoint_is_sealed_in_the_store_only_behind_the_metrics_that_lead_to_it(
    open_run: Callable, save_step: Callable, tmp_path: Path
) -> None:
    # A machine lost right after a seal: what it had not streamed by then, no later attempt trains or logs again.
    with open_run(store_url=str(tmp_path / "store"), flush_interval_s=1e6) as run:
        for step in (1, 2):
            run.log(step, {"loss": 1.0})
        save_step(run.checkpoints, 2)
        lost = LocalStore(tmp_path / "store/r")
        assert lost.exists("checkpoints/global_step_2/COMPLETE")
        assert logged_steps(lost) == [1, 2]


def test_metrics_that_the_store_does_not_take_leave_the_step_unsealed_there(
    open_run: Callable, save_step: Callable, tmp_path: Path
) -> None:
    with open_run(store_url=str(tmp_path / "store"), flush_interval_s=1e6) as run:
        run.log(1, {"loss": 1.0})
        metrics = tmp_path / "store/r/attempts/0001/metrics.jsonl"
        metrics.mkdir()  # nothing can be written there
        save_step(run.checkpoints, 1)
        assert not (tmp_path / "store/r/checkpoints/global_step_1/COMPLETE").exists()
        assert run.checkpoints.num_failed_uploads == 1
        metrics.rmdir()
        run.finish({})
    assert (tmp_path / "store/r/checkpoints/global_step_1/COMPLETE").exists()


def test_a_store_away_for_good_ends_with_the_work_on_disk_and_says_so(open_run: Callable, tmp_path: Path) -> None:
    away = Away(tmp_path)

    def work() -> None:
        with open_run(store_url=str(away.link)) as run:
            run.log(1, {"loss": 1.0})
            away.goes()
            run.finish({"accuracy": 1.0})

    with pytest.raises(StoreError, match=r"the run is done but its result could not be stored.*starting the run again"):
        work()
    away.returns()
    with open_run(store_url=str(away.link)) as run:
        run.finish({"accuracy": 1.0})
    assert logged_steps(LocalStore(tmp_path / "store/r")) == [1]
