"""Attempts: one winner of any race, take-over by end, lock or lease, and writers that stop when overtaken."""

import errno
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from opd.errors import LeaseLost, Overtaken, RunIsLive, StoreRefused, StoreUnavailable
from opd.runs import attempts
from opd.runs.attempts import LEASES_TO_WAIT, Claim, Owner, check_owner, claim_attempt, highest_attempt
from opd.runs.lease import Watch
from opd.store.base import json_bytes
from opd.store.local import LocalStore

# A process of another pod of this node.
POD = """
import socket, sys, time
from opd.runs.attempts import claim_attempt
from opd.store.remote import open_store
socket.gethostname = lambda: "another-pod"
claim_attempt([open_store(root) for root in sys.argv[1:]], spec_hash="h")
print("claimed", flush=True)
time.sleep(3600)
"""


class Clock:
    """A stand-in for `time` whose clock moves only during a sleep."""

    time = staticmethod(time.time)

    def __init__(self, while_asleep: Callable[[], None] = lambda: None):
        self.now_s, self.while_asleep = 0.0, while_asleep

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.while_asleep()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(attempts, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the leases for which a claim waits for a living owner; none by default."""
    monkeypatch.setattr(attempts, "LEASES_TO_WAIT", 0.0)
    return lambda leases: monkeypatch.setattr(attempts, "LEASES_TO_WAIT", leases)


def claim_it(store: LocalStore) -> Claim:
    return claim_attempt([store], spec_hash="h")


def plant_owner(store: LocalStore, attempt: int) -> None:
    """Claim an attempt as a process on another machine."""
    owner = Owner(
        attempt=attempt, token=f"planted-{attempt}", host="elsewhere", pid=1, boot_id="another", started_at_s=time.time(),
        lease_ttl_s=60.0, spec_hash="h",
    )  # fmt: skip
    store.create(f"attempts/{attempt:04d}/owner.json", json_bytes(asdict(owner)))


@pytest.mark.parametrize("num_stores", [1, 2])
def test_an_owner_in_another_pod_of_this_node_is_followed_when_it_is_killed_and_not_before(
    tmp_path: Path, start_child: Callable, num_stores: int
) -> None:
    stores = [LocalStore(tmp_path / name) for name in ("arbiter", "disk")][:num_stores]
    owner = start_child(POD, *(store.root for store in stores))
    owner.wait_for("claimed")
    os.kill(owner.process.pid, signal.SIGSTOP)
    with pytest.raises(RunIsLive, match="another-pod"):
        claim_attempt(stores, spec_hash="h")
    shutil.copytree(stores[-1].root, tmp_path / "copy")  # of which no process holds the lock
    with pytest.raises(RunIsLive):
        claim_attempt([*stores[:-1], LocalStore(tmp_path / "copy")], spec_hash="h")
    owner.process.kill()
    owner.wait()
    owner_file = stores[0].local_path("attempts/0001/owner.json")
    claimed = owner_file.read_bytes()
    for change in ({"boot_id": "another"}, {"token": "of a claim over this one"}):  # of which the lock says nothing
        stores[0].put_json("attempts/0001/owner.json", {**stores[0].get_json("attempts/0001/owner.json"), **change})
        with pytest.raises(RunIsLive):
            claim_attempt(stores, spec_hash="h")
        owner_file.write_bytes(claimed)
    assert claim_attempt(stores, spec_hash="h").owner.attempt == 2


def test_a_disk_that_cannot_lock_leaves_the_lease(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    claim_it(local_store)
    with pytest.raises(RunIsLive):
        claim_it(local_store)


def test_a_living_owner_on_this_host_keeps_the_run_and_is_named(local_store: LocalStore) -> None:
    claim_it(local_store)
    with pytest.raises(RunIsLive, match=rf"attempt 1 .pid {os.getpid()} on .* lease of 60 s.*another name"):
        claim_it(local_store)


def test_a_lease_runs_out_after_a_whole_term_of_its_own_on_our_clock_without_a_beat(
    local_store: LocalStore, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    patience: Callable,
) -> None:  # fmt: skip
    plant_owner(local_store, 1)
    monkeypatch.setattr(attempts, "LEASE_TTL_S", 1.0)
    patience(100.0)
    beats = [10.0]  # once more, by a clock that is an hour off

    def beat() -> None:
        if beats and clock.now_s >= beats[0]:
            local_store.put_json("attempts/0001/heartbeat.json", {"token": "planted-1", "time_s": -3600 + beats.pop()})

    clock.while_asleep = beat
    assert claim_it(local_store).owner.attempt == 2
    assert 70.0 < clock.now_s < 75.0
    assert [("on elsewhere" in text, "waiting for its lease" in text) for text in caplog.messages] == [(True, True)]


def test_an_owner_that_renews_is_waited_for_two_and_a_half_leases(
    local_store: LocalStore, clock: Clock, patience: Callable
) -> None:
    patience(LEASES_TO_WAIT)
    plant_owner(local_store, 1)
    clock.while_asleep = lambda: local_store.put_json("attempts/0001/heartbeat.json", {"time_s": clock.now_s})
    with pytest.raises(RunIsLive, match="elsewhere"):
        claim_it(local_store)
    assert 150.0 <= clock.now_s < 155.0


def test_a_pause_between_two_looks_does_not_count_as_silence(
    local_store: LocalStore, clock: Clock, patience: Callable
) -> None:
    patience(25.0)

    class Sleepy(LocalStore):
        def _get(self, key: str) -> bytes:
            data = super()._get(key)
            if key.endswith("heartbeat.json"):
                clock.now_s += 1000.0
            return data

    plant_owner(local_store, 1)
    local_store.put_json("attempts/0001/heartbeat.json", {"time_s": 0.0})
    with pytest.raises(RunIsLive):
        claim_it(Sleepy(local_store.root))


@pytest.mark.parametrize("record", [b'{"attempt": 1, "tok', b"{}"])
def test_an_owner_record_cut_short_counts_as_claimed_until_its_lease_is_over(
    local_store: LocalStore, clock: Clock, record: bytes, patience: Callable
) -> None:
    local_store.put("attempts/0001/owner.json", record)
    with pytest.raises(RunIsLive, match="unreadable owner record"):
        claim_it(local_store)
    patience(LEASES_TO_WAIT)
    assert claim_it(local_store).owner.attempt == 2


def test_the_highest_attempt_of_any_place_is_followed(tmp_path: Path, local_store: LocalStore) -> None:
    # The store was emptied or restored: the disk still knows the attempts, whose numbers must not be given again.
    plant_owner(local_store, 4)
    local_store.put_json("attempts/0004/ended.json", {})
    local_store.local_path("attempts/0007").mkdir()  # without a record it is a free number
    claim = claim_attempt([LocalStore(tmp_path / "store"), local_store], spec_hash="h")
    assert (claim.owner.attempt, highest_attempt(local_store)) == (5, 5)
    assert LocalStore(tmp_path / "store").get("attempts/0005/owner.json") == local_store.get("attempts/0005/owner.json")


def test_an_overtaken_owner_stops_at_its_next_beat_by_any_place(tmp_path: Path, local_store: LocalStore) -> None:
    old = claim_it(local_store)
    old.beat({})
    other = LocalStore(tmp_path / "other", policy=local_store.policy)
    plant_owner(other, 2)
    with pytest.raises(Overtaken):
        check_owner([local_store, other], 1)
    plant_owner(local_store, 2)
    with pytest.raises(Overtaken, match=r"attempt 1 .* overtaken by attempt 2"):
        old.beat({})


# ---- the lease's thread ------------------------------------------------------------------------------------------------


class Beats:
    """A beat whose answer the test sets, a clock that it turns, and the times at which the attempt was asked to end."""

    def __init__(self) -> None:
        self.now_s, self.num = 0.0, 0
        self.answer: Exception | None = None
        self.asked: list[float] = []

    def __call__(self) -> None:
        self.num += 1
        if self.answer is not None:
            raise self.answer

    def watch(self, term_s: float) -> Watch:
        return Watch(beat=self, term_s=term_s, end=lambda: self.asked.append(self.now_s), clock=lambda: self.now_s)


def test_an_odd_answer_does_not_end_the_thread_and_is_said_once(
    until: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    beats = Beats()
    watch = beats.watch(term_s=0.02)
    beats.answer = odd = KeyError("LastModified")
    watch.start()
    until(lambda: beats.num > 3)
    beats.answer, before = None, beats.num
    until(lambda: beats.num > before + 1)
    watch.check()
    watch.stop()
    assert [record.message for record in caplog.records if "lease not renewed" in record.message] == [
        f"lease not renewed, another attempt may take over when it runs out: {odd!r}"
    ]


@pytest.mark.parametrize(
    ("answer", "survives_s", "ends_s"),
    [(KeyError("ETag"), 60.0, 61.0), (StoreRefused("403"), 60.0, 61.0), (StoreUnavailable("503"), 1800.0, 1861.0)],
)
def test_a_lease_that_is_too_old_asks_the_attempt_to_end_and_stops_its_second_step_after_that(
    answer: Exception, survives_s: float, ends_s: float
) -> None:
    beats = Beats()
    watch = beats.watch(term_s=60.0)
    beats.answer = answer
    for beats.now_s in (step for step in (60.0, 122.0, 1800.0) if step <= survives_s):
        watch.check()
    assert beats.asked == []
    beats.now_s = ends_s
    watch.check()
    with pytest.raises(LeaseLost, match=rf"last renewed {ends_s:.0f} s ago and {survives_s:.0f} s are allowed"):
        watch.check()
    assert beats.asked == [ends_s]


def test_a_process_that_was_paused_beats_before_it_is_stopped() -> None:
    beats = Beats()
    watch = beats.watch(term_s=60.0)
    beats.now_s = 1000.0
    watch.check()
    assert beats.num == 1
    beats.now_s, beats.answer = 2000.0, Overtaken("by attempt 2")
    with pytest.raises(Overtaken, match="by attempt 2"):
        watch.check()
