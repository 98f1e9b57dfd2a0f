"""How long the tool waits for a store: a look gives up soon, a long `--timeout` waits longer, and training is as patient as ever."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from opd.store.base import DEFAULT_POLICY
from opd.store.opening import open_store
from opd.store.remote import FsspecStore
from opdctl.console import DEFAULT_TIMEOUT_S, CommandTimeout, deadline
from opdctl.runs import places


@pytest.fixture
def silent_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that takes connections and says nothing."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("words", ["list", "status r", "compare a b"])
def test_a_store_that_says_nothing_is_given_up_with_its_address_and_a_fix(
    inside: Callable, silent_endpoint: str, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(places, "SILENCE_S", 0.2)
    done = inside(*words.split(), "--store", "s3://bucket/runs")
    assert done.returncode == 1
    error, fix = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert silent_endpoint in error
    assert "AWS_ENDPOINT_URL_S3" in fix


@pytest.mark.parametrize(
    ("timeout_s", "patience_s"), [(6.0, 2.0), (DEFAULT_TIMEOUT_S, 5.0), (900.0, 15.0), (1e5, 20.0)]
)
def test_the_tool_s_patience_goes_by_its_timeout(timeout_s: float, patience_s: float) -> None:
    place = places.open_place("s3://bucket/runs", timeout_s=timeout_s)
    assert isinstance(place, FsspecStore)
    assert place.policy.max_elapsed_s == patience_s
    assert place.filesystem.config_kwargs["read_timeout"] == patience_s


def test_training_stays_patient_beside_it() -> None:
    places.open_place("s3://bucket/runs", timeout_s=6.0)
    store = open_store("s3://bucket/runs")
    assert isinstance(store, FsspecStore)
    assert (store.policy, store.filesystem.config_kwargs["read_timeout"]) == (DEFAULT_POLICY, 20.0)


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


def test_a_command_s_limit_goes_past_what_lets_every_exception_pass() -> None:
    def look_for_ever() -> None:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(60)

    with pytest.raises(CommandTimeout, match=r"not done after 0\.2 s"), deadline(0.2):
        look_for_ever()
