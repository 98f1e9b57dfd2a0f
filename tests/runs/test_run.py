"""A whole run: killed, stopped, overtaken or without its store it continues where it was and loses nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.conftest import step_content, upload_missing
from tests.runs.files import logged_steps

from opd.cluster.shutdown import GracefulStop
from opd.errors import LeaseLost, RunFatal, RunFinished, RunIsLive, Stopped, StoreError, StoreUnavailable
from opd.runs import run as run_module
from opd.runs.attempts import Claim
from opd.runs.result import FATAL_FILE
from opd.runs.run import Run
from opd.store.local import LocalStore


@pytest.mark.parametrize("store", [None, "store"])
def test_a_run_leaves_the_layout_of_the_contract_and_the_result_before_its_end(
    open_run: Callable, save_step: Callable, tmp_path: Path, store: str | None
) -> None:
    with open_run(store_url=store and str(tmp_path / store), tee=True) as run:
        for step in (1, 2):
            run.log(step, {"loss": 1.0})
        save_step(run.checkpoints, 2)
        os.write(1, b"done\n")
        run.finish({"accuracy": 0.5})
    place = LocalStore(tmp_path / (store or "local") / "r")
    infos = {info.key: info for info in place.list("") if not info.key.endswith("heartbeat.json")}
    attempt = [f"attempts/0001/{name}" for name in ("driver.log", "ended.json", "metrics.jsonl", "owner.json")]
    sealed = [f"checkpoints/global_step_2/{name}" for name in (*step_content(2), "manifest.json", "COMPLETE")]
    assert sorted(infos) == sorted([*attempt, *sealed, "run.json", "spec.json", "summary.json", "result.json"])
    result = infos.pop("result.json")
    later = ("summary.json", "attempts/0001/ended.json")
    assert all(info.modified_s <= result.modified_s for key, info in infos.items() if key not in later)
    assert logged_steps(place) == [1, 2]
    record = place.get_json("result.json")
    assert (record["accuracy"], record["run_id"], record["attempt"], record["spec_hash"]) == (0.5, "r", 1, "hash-1")


# ---- the end -----------------------------------------------------------------------------------------------------------


def test_a_fatal_end_stops_the_retries_of_its_installation_until_it_is_cleared(
    open_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPD_INSTALL", "first")
    with open_run() as run:
        run.fail("tokenizers differ", fatal=True)
    with pytest.raises(RunFatal, match=r"attempt 1: tokenizers differ\n.*--retry"):
        open_run()
    run.local.delete(FATAL_FILE)
    with open_run() as run:
        run.fail("no such file", fatal=True)
    monkeypatch.setenv("OPD_INSTALL", "second")
    assert open_run().attempt == 3
    assert not run.local.exists("fatal.json")


@pytest.mark.parametrize(
    ("error", "outcome", "detail"),
    [
        (ZeroDivisionError("in the trainer"), "failed", "ZeroDivisionError: in the trainer"),
        (Stopped("asked to end"), "stopped", "Stopped: asked to end"),
    ],
)
def test_an_exception_marks_the_attempt_and_the_next_one_starts_at_once(
    open_run: Callable, error: BaseException, outcome: str, detail: str
) -> None:
    def work() -> None:
        with open_run() as run:
            run.log(1, {"loss": 1.0})
            raise error from ValueError("a node is gone")

    with pytest.raises(type(error)):
        work()
    run = open_run()
    assert run.attempt == 2
    ended = run.local.get_json("attempts/0001/ended.json")
    assert (ended["outcome"], ended["detail"]) == (outcome, detail)


def test_a_run_that_is_handed_over_is_followed_without_a_wait_and_taken_back_it_is_held(open_run: Callable) -> None:
    names = ("pipeline", "r")
    run = open_run(within=open_run(run_id="pipeline"))
    run.hand_over()
    run.hand_over(back=True)
    for name in names:
        with pytest.raises(RunIsLive):
            open_run(run_id=name)
    run.hand_over()
    assert [open_run(run_id=name).attempt for name in names] == [2, 2]


def test_a_run_that_ended_while_its_owner_was_waited_for_is_not_begun_again(
    open_run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store" / "r")
    claim = run_module.claim_attempt

    def claim_late(stores: object, **options: object) -> object:
        store.put_json("result.json", {"attempt": 1, "accuracy": 0.5})  # the owner's last act, after our first look
        return claim(stores, **options)

    monkeypatch.setattr(run_module, "claim_attempt", claim_late)
    with pytest.raises(RunFinished):
        open_run(store_url=str(tmp_path / "store"))
    assert store.get_json("attempts/0001/ended.json")["outcome"] == "not needed"


@pytest.mark.parametrize("interrupts", [Stopped(), StoreUnavailable("no answer")], ids=["signal", "store"])
def test_a_run_has_finished_with_its_result_although_its_end_is_not_marked(
    open_run: Callable, monkeypatch: pytest.MonkeyPatch, interrupts: BaseException
) -> None:
    outcomes = []

    def end(claim: Claim, outcome: str, detail: str = "") -> None:
        outcomes.append((outcome, claim.stores[0].exists("result.json")))
        raise interrupts

    def work() -> None:
        with open_run() as run:
            monkeypatch.setattr(type(run.claim), "end", end)
            run.finish({"accuracy": 0.5})

    if isinstance(interrupts, Stopped):
        with pytest.raises(Stopped):
            work()
    else:
        work()
    assert outcomes == [("finished", True)]
    with pytest.raises(RunFinished):
        open_run()


# ---- without the store -------------------------------------------------------------------------------------------------


def test_the_same_folder_as_store_is_written_once(open_run: Callable, tmp_path: Path) -> None:
    run: Run = open_run(store_url=f"file://{tmp_path}/local")
    assert run.remote is None


def test_an_attempt_that_the_store_rejects_saves_and_ends_with_the_reason(
    open_run: Callable, save_step: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable
) -> None:
    put = LocalStore._put

    def rejected(store: LocalStore, key: str, data: bytes) -> None:
        if "/store/" in str(store.root):
            raise PermissionError(13, "Access Denied")
        put(store, key, data)

    def work() -> None:
        with open_run(store_url=str(tmp_path / "store"), lease_ttl_s=0.2) as run, GracefulStop() as stop:
            monkeypatch.setattr(LocalStore, "_put", rejected)
            until(lambda: stop.requested)
            run.log(1, {"loss": 1.0})
            save_step(run.checkpoints, 1)
            raise Stopped

    with pytest.raises(LeaseLost, match=r"Access Denied.*saves on its own disk and ends"):
        work()
    assert (tmp_path / "local/r/checkpoints/global_step_1/COMPLETE").exists()


def test_a_checkpoint_is_sealed_in_the_store_only_after_the_metrics_that_lead_to_it(
    open_run: Callable, save_step: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opd.runs.stream.FLUSH_INTERVAL_S", 1e6)
    store = LocalStore(tmp_path / "store/r")
    with open_run(store_url=str(tmp_path / "store")) as run:
        run.log(1, {"loss": 1.0})
        metrics = store.local_path("attempts/0001/metrics.jsonl")
        metrics.mkdir()  # the store takes no metrics
        save_step(run.checkpoints, 1)
        assert not store.exists("checkpoints/global_step_1/COMPLETE")
        metrics.rmdir()
        run.log(2, {"loss": 1.0})
        save_step(run.checkpoints, 2)
        assert store.exists("checkpoints/global_step_2/COMPLETE")
        assert logged_steps(store) == [1, 2]
        assert upload_missing(run.checkpoints) == [1]


def test_files_for_people_wait_for_the_store(
    open_run: Callable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run: Run = open_run(store_url=str(tmp_path / "store"))
    tokens = tmp_path / "store/r/tokens"
    tokens.write_text("in the way of the folder")
    run.keep({"tokens/1": b"one"})
    assert "1 files for people wait for the store" in caplog.text
    tokens.unlink()
    run.keep({"tokens/2": b"two"})
    assert [(tokens / name).read_bytes() for name in "12"] == [b"one", b"two"]


def test_a_store_that_stays_unreachable_ends_the_run_with_the_work_on_disk(open_run: Callable, tmp_path: Path) -> None:
    link, file = tmp_path / "store", tmp_path / "away"
    file.write_text("no folder")
    (tmp_path / "real").mkdir()
    link.symlink_to(tmp_path / "real")

    def point(target: Path) -> None:
        new = tmp_path / "new-link"
        new.symlink_to(target)
        new.replace(link)

    def work() -> None:
        with open_run(store_url=str(link)) as run:
            run.log(1, {"loss": 1.0})
            point(file)
            run.finish({"accuracy": 1.0})

    with pytest.raises(StoreError, match=r"the run is done but its result could not be stored.*Starting the run again"):
        work()
    point(tmp_path / "real")
    with open_run(store_url=str(link)) as run:
        run.finish({"accuracy": 1.0})
    assert logged_steps(LocalStore(tmp_path / "store/r")) == [1]
