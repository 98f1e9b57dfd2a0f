"""How long the tool waits for a store: a look gives up soon, a long `--timeout` waits longer, and training is as patient as ever."""

from __future__ import annotations

import signal
import time

import pytest

from opd.store.remote import FsspecStore
from opdctl.console import DEFAULT_TIMEOUT_S, deadline
from opdctl.runs import places


@pytest.mark.parametrize(
    ("timeout_s", "patience_s"), [(6.0, 2.0), (DEFAULT_TIMEOUT_S, 5.0), (900.0, 15.0), (1e5, 20.0)]
)
def test_the_tool_s_patience_goes_by_its_timeout(timeout_s: float, patience_s: float) -> None:
    place = places.open_place("s3://bucket/runs", timeout_s=timeout_s)
    assert isinstance(place, FsspecStore)
    assert place.policy.max_elapsed_s == patience_s
    assert place.filesystem.config_kwargs["read_timeout"] == patience_s


def test_a_limit_of_the_caller_s_own_holds_behind_a_command_s() -> None:
    def late(number: int, frame: object) -> None:
        raise TimeoutError("the caller's")

    def command_and_more() -> None:
        with deadline(100):
            time.sleep(0.3)
        for _ in range(1000):
            time.sleep(0.05)

    before = signal.signal(signal.SIGALRM, late)
    own_s, _ = signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(TimeoutError, match="the caller's"):
            command_and_more()
    finally:
        signal.setitimer(signal.ITIMER_REAL, own_s)
        signal.signal(signal.SIGALRM, before)
