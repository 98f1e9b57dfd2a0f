"""A pod that has to go gets its save: the request and its answer, over a folder that both sides see."""

import json
import os
import threading
import time

import pytest

from opd.pods import stop
from opd.runs.attempts import ENDED_FILE
from opd.runs.run import Run


@pytest.fixture
def run_dir(tmp_path):
    stop.sign_of_life(tmp_path)
    return tmp_path


def test_a_request_is_answered_with_the_step_that_was_saved(run_dir):
    request = stop.ask(run_dir, reason="test", hold_s=0)
    assert stop.pending(run_dir) == [request]
    assert stop.serve(run_dir, lambda: 40) is True
    assert stop.wait(run_dir, request, timeout_s=5) == 40
    assert stop.pending(run_dir) == []
    assert stop.serve(run_dir, lambda: pytest.fail("saved twice")) is False


def test_many_pods_that_ask_at_once_cost_one_save_and_all_are_answered(run_dir):
    requests = [stop.ask(run_dir, reason="test", hold_s=0) for _ in range(5)]
    saves = []
    stop.serve(run_dir, lambda: saves.append(1) or 7)
    assert saves == [1]
    assert [stop.wait(run_dir, request, timeout_s=5) for request in requests] == [7] * 5


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now_s = 0.0
        self.while_asleep = []

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        for do in self.while_asleep:
            do()


def test_the_trainer_holds_still_after_the_save_for_as_long_as_the_pods_may_take_to_go(run_dir):
    for hold_s in (30, 300, 60):
        stop.ask(run_dir, reason="test", hold_s=hold_s)
    clock = Clock()
    clock.while_asleep.append(lambda: answered.append(not stop.pending(run_dir)))
    answered = []
    stop.serve(run_dir, lambda: 1, clock=clock, sleep=clock.sleep)
    assert clock.now_s == pytest.approx(300)
    assert all(answered), "answers come before the hold"


def test_who_asks_during_the_hold_is_answered_without_another_save(run_dir):
    stop.ask(run_dir, reason="test", hold_s=10)
    clock, saves, late = Clock(), [], []
    clock.while_asleep.append(lambda: late or late.append(stop.ask(run_dir, reason="late", hold_s=60)))
    stop.serve(run_dir, lambda: saves.append(1) or 7, clock=clock, sleep=clock.sleep)
    assert saves == [1]
    assert stop.wait(run_dir, late[0], timeout_s=5) == 7
    assert clock.now_s == pytest.approx(stop.POLL_INTERVAL_S + 60)


def test_the_hold_ends_when_the_trainer_is_told_to_end(run_dir):
    stop.ask(run_dir, reason="test", hold_s=300)
    clock = Clock()
    assert stop.serve(run_dir, lambda: 7, is_over=lambda: clock.now_s >= 2, clock=clock, sleep=clock.sleep)
    assert clock.now_s == pytest.approx(2)


def test_what_an_earlier_trainer_was_asked_is_forgotten(run_dir):
    for served in (True, False):
        stop.ask(run_dir, reason="test", hold_s=0)
        if served:
            stop.serve(run_dir, lambda: 1)
    stop.forget(run_dir)
    assert stop.serve(run_dir, lambda: pytest.fail("saved for nobody")) is False
    assert stop.is_listening(run_dir)


def test_waiting_ends_when_the_trainer_ends(run_dir):
    request = stop.ask(run_dir, reason="test", hold_s=0)
    threading.Timer(0.3, stop.stop_listening, [run_dir]).start()
    began_s = time.monotonic()
    assert stop.wait(run_dir, request, timeout_s=200) is None
    assert time.monotonic() - began_s < 100


def test_a_trainer_that_was_killed_is_known_by_its_silence(run_dir):
    assert stop.is_listening(run_dir)
    old_s = time.time() - stop.LISTEN_TTL_S - 1
    os.utime(run_dir / stop.FOLDER / stop.LISTENING, (old_s, old_s))
    assert not stop.is_listening(run_dir)
    assert {path.name for path in (run_dir / stop.FOLDER).iterdir()} == {stop.LISTENING}


def hook(tmp_path, monkeypatch, capsys):
    (tmp_path / "exp.json").write_text(json.dumps({"name": "r", "output": {"root": "outputs/"}}))
    monkeypatch.chdir(tmp_path)
    assert stop.main(["exp.json"]) == 0
    return capsys.readouterr().err


def test_the_hook_waits_for_the_save(tmp_path, monkeypatch, capsys):
    run_dir = tmp_path / "outputs/r"
    stop.sign_of_life(run_dir)

    def trainer():
        while not stop.serve(run_dir, lambda: 12, is_over=lambda: True):
            time.sleep(0.05)

    thread = threading.Thread(target=trainer)
    thread.start()
    assert "saved at step 12" in hook(tmp_path, monkeypatch, capsys)
    thread.join(timeout=5)


def test_the_hook_says_that_no_save_came_in_time(tmp_path, monkeypatch, capsys):
    stop.sign_of_life(tmp_path / "outputs/r")
    monkeypatch.setenv(stop.SAVE_SECONDS_VARIABLE, "0.2")
    assert "no save within 0.2 s" in hook(tmp_path, monkeypatch, capsys)


def test_work_of_which_nothing_can_be_saved_goes_on_while_pods_are_answered_and_waited_for(tmp_path):
    with Run.open(run_id="r", local_root=tmp_path, spec={}, spec_hash="h", tee=False) as run:
        ended = run.handle.attempt_dir / ENDED_FILE
        stop.sign_of_life(run.asked_in)
        with stop.answering(run):
            request = stop.ask(run.asked_in, reason="test", hold_s=600)
            assert stop.wait(run.asked_in, request, timeout_s=60) == 0
            assert ended.exists(), "the lease is handed over"
        assert not ended.exists(), "its end ends the wait"


def test_a_request_that_a_later_start_takes_away_meanwhile_is_none(run_dir):
    (run_dir / stop.FOLDER).mkdir(parents=True, exist_ok=True)
    (run_dir / stop.FOLDER / "gone.request").symlink_to("nothing")  # listed, and cannot be read
    assert stop.pending(run_dir) == []
    assert not stop.has_asked(run_dir, "any")
