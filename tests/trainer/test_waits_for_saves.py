"""A wait for a save is no stall while the ranks answer, however long it takes, and is one where they do not."""

from __future__ import annotations

import threading
import time

import pytest

from opd.trainer import trainer as trainers
from opd.worker.checkpointing import Sealing


@pytest.fixture
def waiting(monkeypatch):
    """A trainer with a save on its way, and the signs of progress that its wait gives."""
    ticks = []
    monkeypatch.setattr(trainers, "SEAL_POLL_S", 0.01)
    monkeypatch.setattr(trainers.PROGRESS, "tick", lambda: ticks.append(time.monotonic()))
    trainer = object.__new__(trainers.OrderedTrainer)
    trainer._sealing, trainer._saved_step = Sealing(), None
    return trainer, ticks


def test_ranks_that_answer_are_progress(waiting):
    trainer, ticks = waiting
    deadline_s = time.monotonic() + 60

    def write_for_long() -> None:
        while len(ticks) < 3 and time.monotonic() < deadline_s:
            trainer._sealing.answered()
            time.sleep(0.001)

    trainer._sealing.begin(4, write_for_long)
    trainer._wait_for_seal()
    assert len(ticks) >= 3
    assert trainer._saved_step == 4


def test_ranks_that_do_not_answer_are_none(waiting):
    trainer, ticks = waiting
    is_over = threading.Event()
    trainer._sealing.begin(4, lambda: is_over.wait(60) and None)
    threading.Timer(0.1, is_over.set).start()
    trainer._wait_for_seal()
    assert ticks == []
    assert trainer._saved_step == 4


def test_what_ends_a_save_s_thread_is_no_sealed_step(waiting):
    trainer, _ = waiting

    def leave() -> None:
        raise SystemExit(1)

    trainer._sealing.begin(4, leave)
    with pytest.raises(SystemExit):
        trainer._wait_for_seal()
    assert trainer._saved_step is None
