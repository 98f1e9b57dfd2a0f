"""Saves that are asked for between steps, servers that sleep meanwhile, and the end of a run."""

import threading
import time
from types import SimpleNamespace

import pytest

from opd import ending, loop
from opd.ending import STOPPED
from opd.pods import stop
from opd.trainer import checkpointing


@pytest.fixture
def play(tmp_path, monkeypatch):
    """A loop after step 4 of 9, and what it is made to do, in order."""
    did: list[str] = []
    run = SimpleNamespace(
        asked_in=tmp_path, checkpoints=SimpleNamespace(begin=lambda step: True),
        hand_over=lambda back=False: did.append("take back" if back else "hand over"),
    )  # fmt: skip
    checkpoint = SimpleNamespace(overlap=False)
    trained = SimpleNamespace(trainer=SimpleNamespace(save_freq=5, test_freq=-1))
    job = SimpleNamespace(
        run=run, ours=SimpleNamespace(trained=trained, checkpoint=checkpoint), data=SimpleNamespace(total_steps=9), ranks=None,
        let_servers_sleep=lambda: did.append("servers sleep"), send_weights=lambda step: did.append("servers wake"),
        save=lambda step: did.append(f"save {step}"),
    )  # fmt: skip
    monkeypatch.setattr(ending.lost, "lost_parts", lambda **_: {})
    monkeypatch.setattr(checkpointing, "seal", lambda run, ranks, step, *rest: did.append(f"seal {step}"))

    def make() -> tuple[loop.Loop, list[str]]:
        made = loop.Loop(job, SimpleNamespace(save=lambda folder: None))
        made.step = 4
        return made, did

    return make


SAVED = ["servers sleep", "save 4", "seal 4"]


def test_servers_sleep_while_a_save_is_asked_for_and_wake_when_the_pod_has_stayed(play, tmp_path):
    made, did = play()
    stop.ask(tmp_path, hold_s=0.0)
    assert made._serve() is None
    assert did == [*SAVED, "hand over", "take back", "servers wake"]


def test_a_run_that_is_asked_to_end_saves_its_step_and_leaves_the_servers_asleep(play):
    made, did = play()
    made.stop.requested = True
    assert made._serve() is STOPPED
    assert did == SAVED


def test_a_step_that_is_saved_is_not_saved_again(play, tmp_path):
    made, did = play()
    made.saves._sealed = 4
    stop.ask(tmp_path, hold_s=0.0)
    assert made._serve() is None
    assert did == ["hand over", "take back"]


def test_after_the_last_step_a_run_that_is_asked_to_end_is_done(play):
    made, did = play()
    made.step, made.stop.requested = 9, True
    assert made._serve() is None
    assert did == []


def test_pods_that_are_gone_with_their_nodes_end_the_run_with_a_code_of_its_own(play, tmp_path, monkeypatch):
    made, did = play()
    monkeypatch.setenv("RAY_ADDRESS", "a cluster")
    monkeypatch.setattr(ending.lost, "lost_parts", lambda **_: {"id": "a rank"})
    stop.ask(tmp_path, hold_s=60.0)
    found = made._serve()
    assert found is not None
    assert (found.exit_code, found.result) == (76, None)
    assert did == [*SAVED, "hand over"], "the next attempt need not wait for the lease"


@pytest.fixture
def saves(play, monkeypatch):
    """Saves with a short look, and the signs of progress that a wait for them gives."""
    ticks: list[float] = []
    monkeypatch.setattr(loop, "SEAL_POLL_S", 0.01)
    monkeypatch.setattr(loop.PROGRESS, "tick", lambda: ticks.append(time.monotonic()))
    return play()[0].saves, ticks


def test_a_wait_for_a_save_is_no_stall_while_the_ranks_answer(saves):
    made, ticks = saves
    deadline_s = time.monotonic() + 60

    def write_for_long() -> None:
        while len(ticks) < 3 and time.monotonic() < deadline_s:
            made.sealing.answered()
            time.sleep(0.001)

    made.sealing.begin(4, write_for_long)
    made.wait()
    assert len(ticks) >= 3
    assert made._sealed == 4


def test_ranks_that_do_not_answer_are_no_progress(saves):
    made, ticks = saves
    is_over = threading.Event()
    made.sealing.begin(4, lambda: is_over.wait(60) and None)
    threading.Timer(0.1, is_over.set).start()
    made.wait()
    assert (ticks, made._sealed) == ([], 4)


def test_an_end_of_a_save_s_thread_seals_no_step(saves):
    made, _ = saves

    def leave() -> None:
        raise SystemExit(1)

    made.sealing.begin(4, leave)
    with pytest.raises(SystemExit):
        made.wait()
    assert made._sealed is None
