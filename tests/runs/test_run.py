"""A whole run: killed, stopped and overtaken, it goes on where it was and loses nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.files import logged_steps

from opd.cluster.shutdown import GracefulStop
from opd.errors import LeaseLost, Overtaken, RunFatal, RunFinished, SpecChanged, StoreUnavailable
from opd.runs import clear_fatal
from opd.runs import run as run_module
from opd.runs.attempts import Claim
from opd.runs.run import Run
from opd.runs.stream import read_streamed
from opd.runs.writer import RunWriter
from opd.store.local import LocalStore

LEASE_S = 4


@pytest.fixture(params=[False, True], ids=["local", "store"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Local root and store URL: one folder as both, or two."""
    return tmp_path / "local", f"file://{tmp_path}/store" if request.param else ""


@pytest.fixture
def train(start_trainer: Callable, places: tuple[Path, str]) -> Callable:
    def start(num_steps: int = 12, step_s: float = 0.0, lease_ttl_s: float = LEASE_S, **environment: str):
        return start_trainer(*places, num_steps, step_s, lease_ttl_s, **environment)

    return start


@pytest.fixture
def run_store(places: tuple[Path, str]) -> LocalStore:
    """What is left of the run when its machine is gone."""
    return LocalStore(Path(places[1].removeprefix("file://") or places[0]) / "r")


# ---- from start to end --------------------------------------------------------------------------------------------


def test_a_run_leaves_the_layout_of_the_contract(train: Callable, run_store: LocalStore) -> None:
    child = train()
    assert child.wait() == 0, child.text
    keys = {info.key for info in run_store.list("")} - {"attempts/0001/heartbeat.json"}
    assert {key for key in keys if not key.startswith("checkpoints/")} == {
        "run.json",
        "spec.json",
        "attempts/0001/owner.json",
        "attempts/0001/metrics.jsonl",
        "attempts/0001/driver.log",
        "attempts/0001/ended.json",
        "result.json",
        "summary.json",
    }
    assert {key.split("/")[1] for key in keys if key.startswith("checkpoints/")} == {"global_step_5", "global_step_10"}
    assert logged_steps(run_store) == list(range(1, 13))
    log = read_streamed(run_store, "attempts/0001/driver.log").decode()
    assert log.splitlines()[-1] == "done"
    result = run_store.get_json("result.json")
    assert result is not None
    assert (result["accuracy"], result["run_id"], result["attempt"], result["spec_hash"]) == (0.5, "r", 1, "h")


@pytest.mark.slow
def test_the_result_is_the_last_thing_written_but_for_what_tells_of_it(train: Callable, run_store: LocalStore) -> None:
    assert train().wait() == 0
    result, *others = sorted(run_store.list(""), key=lambda info: info.key != "result.json")
    assert result.key == "result.json"
    others = [info for info in others if info.key not in ("summary.json", "attempts/0001/ended.json")]
    assert all(info.modified_s <= result.modified_s for info in others)


def test_a_finished_run_is_not_started_again_and_gives_its_result(open_run: Callable) -> None:
    with open_run() as run:
        run.finish({"accuracy": 0.5})
    with pytest.raises(RunFinished, match="finished in attempt 1") as finished:
        open_run()
    assert finished.value.result["accuracy"] == 0.5
    assert finished.value.exit_code == 0


def test_a_fatal_end_stops_the_retries_of_its_installation_until_it_is_cleared(
    open_run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPD_INSTALL", "first")
    with open_run() as run:
        run.fail("tokenizers differ", fatal=True)
    with pytest.raises(RunFatal, match=r"attempt 1: tokenizers differ\n.*--retry"):
        open_run()
    assert clear_fatal(LocalStore(tmp_path / "local"), "r")
    assert not clear_fatal(LocalStore(tmp_path / "local"), "r")
    assert open_run().handle.attempt == 2


def test_a_later_installation_tries_again_after_a_fatal_end(
    open_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPD_INSTALL", "first")
    with open_run() as run:
        run.fail("no such file", fatal=True)
    monkeypatch.setenv("OPD_INSTALL", "second")
    assert open_run().handle.attempt == 2
    assert not run.local.exists("fatal.json")


def test_an_attempt_that_the_store_refuses_saves_and_ends_with_the_reason(
    open_run: Callable, save_step: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable
) -> None:
    put = LocalStore._put

    def refused(store: LocalStore, key: str, data: bytes) -> None:
        if "/store/" in str(store.root):
            raise PermissionError(13, "Access Denied")
        put(store, key, data)

    def work() -> None:
        with open_run(store_url=str(tmp_path / "store"), lease_ttl_s=0.2) as run, GracefulStop() as stop:
            monkeypatch.setattr(LocalStore, "_put", refused)
            until(lambda: stop.requested)
            run.log(1, {"loss": 1.0})
            save_step(run.checkpoints, 1)
            raise SystemExit(143)

    with pytest.raises(LeaseLost, match=r"Access Denied.*saves on its own disk and ends"):
        work()
    assert (tmp_path / "local/r/checkpoints/global_step_1/COMPLETE").exists()


def test_an_exception_marks_the_attempt_failed_and_the_next_one_starts_at_once(open_run: Callable) -> None:
    def crash() -> None:
        with open_run() as run:
            run.log(1, {"loss": 1.0})
            raise ZeroDivisionError("in the trainer")

    with pytest.raises(ZeroDivisionError):
        crash()
    run = open_run()
    assert run.handle.attempt == 2
    ended = run.local.get_json("attempts/0001/ended.json")
    assert (ended["outcome"], ended["detail"]) == ("failed", "ZeroDivisionError: in the trainer")


def test_an_orderly_end_names_the_error_behind_it(open_run: Callable) -> None:
    with pytest.raises(SystemExit), open_run() as run:
        raise SystemExit(76) from ZeroDivisionError("a node is gone")
    ended = run.local.get_json("attempts/0001/ended.json")
    assert (ended["outcome"], ended["detail"]) == ("stopped", "ZeroDivisionError: a node is gone")


def test_another_spec_under_the_name_is_refused_before_an_attempt_is_claimed(open_run: Callable) -> None:
    open_run().claim.end("stopped")
    with pytest.raises(SpecChanged, match="seed: 1 -> 2"):
        open_run(spec={"kind": "opd", "seed": 2}, spec_hash="hash-2")
    assert open_run().handle.attempt == 2


def test_the_same_folder_as_store_is_written_once(open_run: Callable, tmp_path: Path) -> None:
    run: Run = open_run(store_url=f"file://{tmp_path}/local")
    assert run.remote is None
    assert run.handle.store_url is None


def test_another_process_writes_through_the_handle(open_run: Callable, tmp_path: Path) -> None:
    import pickle

    with open_run(store_url=str(tmp_path / "store")) as run:
        handle = pickle.loads(pickle.dumps(run.handle))
        with RunWriter(handle) as writer:
            writer.log(1, {"loss": 1.0})
        run.finish({})
    assert logged_steps(LocalStore(tmp_path / "store/r")) == [1]


# ---- kills and signals --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_flushes_everything_and_hands_the_run_over_at_once(train: Callable, run_store: LocalStore) -> None:
    child = train(num_steps=1000, step_s=0.02)
    child.wait_for("step 3\n")
    child.process.send_signal(signal.SIGTERM)
    assert child.wait() == 143, child.text
    printed = [int(line.split()[1]) for line in child.text.splitlines() if line.startswith("step")]
    steps = logged_steps(run_store)
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) - len(printed) in (0, 1)  # the signal may come between the row and its log line
    log = read_streamed(run_store, "attempts/0001/driver.log").decode()
    assert [int(line.split()[1]) for line in log.splitlines() if line.startswith("step")] == printed
    ended = run_store.get_json("attempts/0001/ended.json")
    assert ended is not None
    assert ended["outcome"] == "stopped"
    following = train(num_steps=1)
    assert following.wait() == 0
    assert "attempt 2" in following.text


def test_an_overtaken_run_cannot_log_or_finish(open_run: Callable) -> None:
    with open_run(lease_ttl_s=0.2) as run:
        run.local.put_json("attempts/0002/owner.json", {})

        def log_until_stopped() -> None:
            deadline_s = time.monotonic() + 60
            while time.monotonic() < deadline_s:
                run.log(1, {"loss": 1.0})
                time.sleep(0.01)

        with pytest.raises(Overtaken):
            log_until_stopped()
        with pytest.raises(Overtaken):
            run.finish({})
        assert not run.local.exists("result.json")


def test_of_two_winners_of_one_claim_the_one_written_over_seals_nothing_and_leaves_the_run_to_the_other(
    open_run: Callable, save_step: Callable, tmp_path: Path
) -> None:
    # Two machines whose store let both create attempts/0001/owner.json; no beat has come yet.
    url = str(tmp_path / "store")
    lost: Run = open_run(store_url=url)
    store = LocalStore(tmp_path / "store/r")
    owner = store.get_json("attempts/0001/owner.json")
    assert owner is not None

    def work() -> None:
        with lost:
            store.put_json("attempts/0001/owner.json", owner | {"token": "the other one's"})
            with pytest.raises(Overtaken):
                save_step(lost.checkpoints, 5)
            with pytest.raises(Overtaken):
                lost.fail("cannot be mended", fatal=True)
            lost.finish({"accuracy": 1.0})

    with pytest.raises(Overtaken, match="claimed over this one"):
        work()
    written = {info.key for info in store.list("")}
    assert not any(key.startswith("checkpoints/") for key in written)
    assert not written & {"result.json", "fatal.json", "attempts/0001/ended.json"}


def test_an_attached_thread_other_than_main_installs_no_signal_handler(open_run: Callable) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def body() -> None:
        with open_run() as run:
            seen.append(signal.getsignal(signal.SIGTERM))
            run.finish({})

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]
    assert signal.getsignal(signal.SIGTERM) == before


def test_opening_a_run_loads_neither_torch_nor_ray_nor_verl(start_child: Callable) -> None:
    script = """
    import sys
    import opd.runs.run, opd.store.remote
    print(sorted({"torch", "ray", "verl", "transformers"} & set(sys.modules)))
    """
    child = start_child(script)
    assert child.wait() == 0
    assert child.text == "[]\n"


def test_a_run_that_ended_while_its_owner_was_waited_for_is_not_begun_again(
    open_run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store" / "r")
    claim = run_module.claim_attempt

    def claim_late(stores: object, **options: object) -> object:
        store.put_json("result.json", {"attempt": 1, "accuracy": 0.5})  # the owner's last act, after our first look
        return claim(stores, **options)

    monkeypatch.setattr(run_module, "claim_attempt", claim_late)
    with pytest.raises(RunFinished) as finished:
        open_run(store_url=str(tmp_path / "store"))
    assert finished.value.result["accuracy"] == 0.5
    assert store.get_json("attempts/0001/ended.json")["outcome"] == "not needed"


def test_who_finds_the_attempt_ended_finds_its_result_too(open_run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_run() as run:
        end = type(run.claim).end
        there = []

        def end_and_look(claim: Claim, outcome: str, detail: str = "") -> None:
            there.append(run.local.exists("result.json"))
            end(claim, outcome, detail)

        monkeypatch.setattr(type(run.claim), "end", end_and_look)
        run.finish({"accuracy": 0.5})
    assert there == [True]


def test_a_run_that_is_told_to_end_behind_its_result_has_not_stopped(
    open_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []

    def told(claim: Claim, outcome: str, detail: str = "") -> None:
        outcomes.append(outcome)
        raise SystemExit(130)

    def work() -> None:
        with open_run() as run:
            monkeypatch.setattr(type(run.claim), "end", told)
            run.finish({"accuracy": 0.5})

    with pytest.raises(SystemExit):
        work()
    assert outcomes == ["finished"]


def test_a_run_whose_result_is_stored_has_finished_although_its_end_cannot_be_marked(
    open_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(claim: Claim, outcome: str, detail: str = "") -> None:
        raise StoreUnavailable("the store is away")

    with open_run() as run:
        monkeypatch.setattr(type(run.claim), "end", away)
        assert run.finish({"accuracy": 0.5})["accuracy"] == 0.5
    with pytest.raises(RunFinished):
        open_run()
