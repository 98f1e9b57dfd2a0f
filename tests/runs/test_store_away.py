"""A run whose store is away: it trains on, keeps its work on disk, seals nothing too early and says what it could not do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.files import logged_steps

from opd.errors import StoreError
from opd.runs.stream import read_streamed
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


@pytest.mark.slow
def test_while_the_store_is_away_training_goes_on_and_everything_arrives_when_it_is_back(
    start_trainer: Callable, tmp_path: Path
) -> None:
    away = Away(tmp_path)
    child = start_trainer(tmp_path / "local", away.link, 60, 0.05, 60, STOP_AT="6,40")
    child.wait_for("step 6\n")
    os.waitid(os.P_PID, child.process.pid, os.WSTOPPED)  # it stops itself behind its line
    away.goes()
    child.process.send_signal(signal.SIGCONT)
    child.wait_for("object store away, spooling on disk")
    child.wait_for("is complete on the local disk only")
    child.wait_for("step 40\n")
    os.waitid(os.P_PID, child.process.pid, os.WSTOPPED)  # it stops itself behind its line
    away.returns()
    child.process.send_signal(signal.SIGCONT)
    assert child.wait() == 0, child.text
    left = LocalStore(away.link / "r")
    assert logged_steps(left) == list(range(1, 61))
    log = read_streamed(left, "attempts/0001/driver.log").decode()
    assert [line for line in log.splitlines() if line.startswith("step")] == [f"step {n}" for n in range(1, 61)]
    assert left.exists("checkpoints/global_step_60/COMPLETE")
    assert left.exists("result.json")


def test_a_checkpoint_saved_while_the_store_was_away_is_there_at_the_end(
    open_run: Callable, save_step: Callable, tmp_path: Path
) -> None:
    away = Away(tmp_path)
    with open_run(store_url=str(away.link)) as run:
        away.goes()
        save_step(run.checkpoints, 5)
        away.returns()
        run.finish({})
    assert (tmp_path / "store/r/checkpoints/global_step_5/COMPLETE").exists()


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


def test_a_store_that_is_gone_when_the_result_is_made_up_is_told_the_same_way(
    open_run: Callable, tmp_path: Path
) -> None:
    away = Away(tmp_path)
    with open_run(store_url=str(away.link)) as run:
        run.log(1, {"loss": 1.0})
        assert [row["loss"] for row in run.history()] == [1.0]
        away.goes()
        with pytest.raises(StoreError, match=rf"the run is done but its result .* complete in {tmp_path}/local/r"):
            run.history()
        away.returns()


def test_uploads_that_take_effect_after_the_end_take_no_metrics_from_a_finished_run(
    open_run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, late = LocalStore._put, []

    def put_late(store: LocalStore, key: str, data: bytes) -> None:
        """The first two uploads of metrics get no answer."""
        if "/store/" in str(store.root) and "metrics" in key and len(late) < 2:
            late.append((store, key, data))
            raise TimeoutError(110, "no answer")
        put(store, key, data)

    monkeypatch.setattr(LocalStore, "_put", put_late)
    with open_run(store_url=str(tmp_path / "store"), flush_interval_s=1e6) as run:
        run.log(1, {"loss": 1.0})
        assert not run._streamer.tick()
        run.log(2, {"loss": 1.0})
        run.finish({})
        assert len(late) == 2
        for store, key, data in late:
            put(store, key, data)
        assert logged_steps(LocalStore(tmp_path / "store/r")) == [1, 2]
