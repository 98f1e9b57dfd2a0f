"""What a parent hears of a child process: its message, that it has ended, or nothing in time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from opd.isolation.pool import ChildProcess


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    child = ChildProcess("opd.rewards.worker")
    yield child
    child.kill()
    child.disconnect()


def test_a_child_that_sends_nothing_is_late(child: ChildProcess) -> None:
    with pytest.raises(TimeoutError, match=r"no answer in 0\.1 s"):
        child.receive(0.1)


def test_a_child_that_its_own_alarm_has_ended_before_the_parent_looked_is_late(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGALRM)
    with pytest.raises(TimeoutError):
        child.receive(60.0)


def test_a_child_that_has_ended_otherwise_is_not_late_however_long_the_parent_stood_still(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGKILL)
    assert child.exit_status() == " with exit status -9"
    with pytest.raises(EOFError):
        child.receive(0.0)
