"""A pod that has to go gets its save: the request and its answer, over a folder that both sides see."""

import json
import os
import threading
import time

import pytest

from opd.pods import stop


@pytest.fixture
def run_dir(tmp_path):
    stop.sign_of_life(tmp_path)
    return tmp_path


class Clock:
    """Time that passes only during a sleep."""

    def __init__(self, monkeypatch, while_asleep=lambda: None):
        self.now_s, self.while_asleep = 0.0, while_asleep
        monkeypatch.setattr(stop, "time", self)

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        self.while_asleep()


def unanswered(run_dir):
    return stop.requests(run_dir, answered=False)


def test_many_pods_that_ask_at_once_cost_one_save_and_each_gets_the_step(run_dir):
    requests = [stop.ask(run_dir, hold_s=0) for _ in range(5)]
    assert sorted(unanswered(run_dir), key=str) == sorted(requests, key=str)
    saves = []
    assert stop.serve(run_dir, lambda: saves.append(1) or 7) is True
    assert saves == [1]
    assert [stop.wait(run_dir, request, timeout_s=5) for request in requests] == [7] * 5
    assert unanswered(run_dir) == []
    assert stop.serve(run_dir, lambda: pytest.fail("saved twice")) is False


def test_the_trainer_holds_still_after_the_answer_for_as_long_as_the_pods_may_take(run_dir, monkeypatch):
    for hold_s in (30, 300, 60):
        stop.ask(run_dir, hold_s=hold_s)
    answered = []
    clock = Clock(monkeypatch, lambda: answered.append(not unanswered(run_dir)))
    stop.serve(run_dir, lambda: 1)
    assert clock.now_s == pytest.approx(300)
    assert all(answered), "answers come before the hold"


def test_a_pod_that_asks_during_the_hold_is_answered_without_another_save(run_dir, monkeypatch):
    stop.ask(run_dir, hold_s=10)
    saves, late = [], []
    clock = Clock(monkeypatch, lambda: late or late.append(stop.ask(run_dir, hold_s=60)))
    stop.serve(run_dir, lambda: saves.append(1) or 7)
    assert saves == [1]
    assert stop.wait(run_dir, late[0], timeout_s=5) == 7
    assert clock.now_s == pytest.approx(stop.POLL_INTERVAL_S + 60)


def test_the_hold_ends_when_the_trainer_has_to_end(run_dir, monkeypatch):
    stop.ask(run_dir, hold_s=300)
    clock = Clock(monkeypatch)
    assert stop.serve(run_dir, lambda: 7, is_over=lambda: clock.now_s >= 2)
    assert clock.now_s == pytest.approx(2)


def test_requests_to_an_earlier_trainer_are_forgotten(run_dir):
    for served in (True, False):
        stop.ask(run_dir, hold_s=0)
        if served:
            stop.serve(run_dir, lambda: 1)
    stop.forget(run_dir)
    assert stop.serve(run_dir, lambda: pytest.fail("saved for no pod")) is False
    assert stop.is_listening(run_dir)


def test_a_pod_stops_waiting_when_the_trainer_ends(run_dir):
    request = stop.ask(run_dir, hold_s=0)
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


@pytest.mark.parametrize(("saves", "said"), [(True, "saved at step 12"), (False, "no save within 0.2 s")])
def test_the_hook_waits_for_the_save_for_a_bounded_time(tmp_path, monkeypatch, capsys, saves, said):
    run_dir = tmp_path / "outputs/r"
    (tmp_path / "exp.json").write_text(json.dumps({"name": "r", "output": {"root": "outputs/"}}))
    monkeypatch.chdir(tmp_path)
    stop.sign_of_life(run_dir)

    def trainer():
        while not stop.serve(run_dir, lambda: 12, is_over=lambda: True):
            time.sleep(0.05)

    thread = threading.Thread(target=trainer)
    if saves:
        thread.start()
    else:
        monkeypatch.setenv(stop.SAVE_SECONDS_VARIABLE, "0.2")
    assert stop.main("exp.json") == 0
    assert said in capsys.readouterr().err
    if saves:
        thread.join(timeout=5)


def test_a_request_that_a_later_start_removes_meanwhile_is_none(run_dir):
    (run_dir / stop.FOLDER / "gone.request").symlink_to("nothing")  # listed, and cannot be read
    assert stop.requests(run_dir) == []
