"""Attempts: one winner of any race, take-over by the rule, and writers that stop when overtaken."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opd.errors import Overtaken, RunIsLive
from opd.runs import attempts
from opd.runs.attempts import Claim, Owner, check_owner, claim_attempt, highest_attempt
from opd.runs.process import this_process
from opd.store.base import ObjectInfo, json_bytes
from opd.store.local import LocalStore

CLAIMER = """
import sys, pathlib, time
from opd.runs.attempts import claim_attempt
from opd.errors import RunIsLive
from opd.store.opening import open_store
root, name = sys.argv[1:]
store = open_store(root)
(pathlib.Path(root) / f"ready-{name}").touch()
while not (pathlib.Path(root) / "go").exists():
    time.sleep(0.001)
try:
    claim = claim_attempt([store], spec_hash="h", max_wait_s=0.2, on_wait=lambda message: None)
    print("attempt", claim.attempt, flush=True)
except RunIsLive as error:
    print("live:", error, flush=True)
while not (pathlib.Path(root) / "leave").exists():  # the winner must live while the others look
    time.sleep(0.01)
"""


# Claims as a process of another pod of this node: under another host name, in a PID namespace that is not seen from here.
POD = """
import os, socket, sys, time
from opd.runs.attempts import claim_attempt
from opd.store.opening import open_store
socket.gethostname, os.readlink = lambda: "another-pod", lambda path: "pid:[1]"
claim_attempt([open_store(root) for root in sys.argv[1:]], spec_hash="h", lease_ttl_s=3600)
print("claimed", flush=True)
time.sleep(3600)
"""


class Clock:
    """A stand-in for `time`: its clock moves only while somebody sleeps."""

    time = staticmethod(time.time)

    def __init__(self, while_asleep: Callable[[], None] = lambda: None):
        self.now_s, self.while_asleep = 0.0, while_asleep

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.while_asleep()


def claim_it(store: LocalStore, **overrides: object) -> Claim:
    options: dict[str, object] = {"spec_hash": "h", "max_wait_s": 0.0}
    return claim_attempt([store], **{**options, **overrides})  # type: ignore[arg-type]


def plant_owner(
    store: LocalStore, attempt: int, *, age_s: float = 0.0, lease_ttl_s: float = 60.0, **process: object
) -> None:
    """An attempt of another process, whose last sign of life is `age_s` old."""
    owner = Owner(
        attempt=attempt,
        token=f"planted-{attempt}",
        process=dataclasses.replace(this_process(), **process),  # type: ignore[arg-type]
        started_at_s=time.time(),
        lease_ttl_s=lease_ttl_s,
        spec_hash="h",
    )
    key = f"attempts/{attempt:04d}/owner.json"
    store.create(key, json_bytes(owner.to_json()))
    then = time.time() - age_s
    os.utime(store.local_path(key), (then, then))


def test_the_first_attempt_is_number_one_and_says_who_owns_it(local_store: LocalStore) -> None:
    claim = claim_it(local_store, lease_ttl_s=7.0)
    record = local_store.get_json("attempts/0001/owner.json")
    assert record is not None
    assert record["attempt"] == claim.attempt == 1
    assert record["process"]["pid"] == os.getpid()
    assert record["lease_ttl_s"] == 7.0
    assert record["spec_hash"] == "h"


@pytest.mark.slow
@pytest.mark.parametrize("num_earlier", [0, 1])
def test_of_processes_that_start_at_once_one_gets_the_attempt(
    tmp_path: Path, start_child: Callable, until: Callable, num_earlier: int
) -> None:
    root = tmp_path / "run"
    root.mkdir()
    if num_earlier:
        plant_owner(LocalStore(root), 1, pid=2**22 + 1, start="1")
    children = [start_child(CLAIMER, root, f"claimer-{number}") for number in range(6)]
    until(lambda: len(list(root.glob("ready-*"))) == len(children))
    (root / "go").touch()
    for child in children:
        until(lambda child=child: child.text.count("\n") == 1)
    (root / "leave").touch()
    assert [child.wait() for child in children] == [0] * len(children)
    assert sorted(child.text.split(":")[0].strip() for child in children) == [
        f"attempt {num_earlier + 1}",
        *["live"] * (len(children) - 1),
    ]


def test_an_owner_whose_process_is_gone_from_this_host_is_followed_at_once(
    local_store: LocalStore, start_child: Callable
) -> None:
    script = """
    import sys
    from opd.runs.attempts import claim_attempt
    from opd.store.opening import open_store
    claim_attempt([open_store(sys.argv[1])], spec_hash="h", lease_ttl_s=3600)
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
    """
    assert start_child(script, local_store.root).wait() == -9
    assert claim_it(local_store).attempt == 2


@pytest.mark.parametrize("num_stores", [1, 2])
def test_an_owner_in_another_pod_of_this_node_is_followed_when_it_is_killed_and_not_before(
    tmp_path: Path, start_child: Callable, num_stores: int
) -> None:
    stores = [LocalStore(tmp_path / name) for name in ("arbiter", "disk")][:num_stores]
    owner = start_child(POD, *(store.root for store in stores))
    owner.wait_for("claimed")
    os.kill(owner.process.pid, signal.SIGSTOP)  # it lives, whatever its lease does
    with pytest.raises(RunIsLive, match="another-pod"):
        claim_attempt(stores, spec_hash="h", max_wait_s=0.0)
    owner.process.kill()
    owner.wait()
    assert claim_attempt(stores, spec_hash="h", max_wait_s=0.0).attempt == 2


def killed_in_another_pod(store: LocalStore, start_child: Callable) -> None:
    owner = start_child(POD, store.root)
    owner.wait_for("claimed")
    owner.process.kill()
    owner.wait()


def test_a_lock_of_another_boot_or_claim_says_nothing(local_store: LocalStore, start_child: Callable) -> None:
    killed_in_another_pod(local_store, start_child)
    record = local_store.get_json("attempts/0001/owner.json")
    assert record is not None
    for change in ({"process": {**record["process"], "boot_id": "another"}}, {"token": "of a claim over this one"}):
        local_store.put_json("attempts/0001/owner.json", {**record, **change})
        with pytest.raises(RunIsLive):
            claim_it(local_store)


def test_a_disk_that_cannot_lock_leaves_the_lease(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    claim_it(local_store)
    assert sorted(os.listdir(local_store.local_path("attempts/0001"))) == ["owner.json"]
    owner = local_store.get_json("attempts/0001/owner.json")
    assert owner is not None
    elsewhere = {**owner["process"], "host": "another-pod", "pid_namespace": "pid:[1]"}
    local_store.put_json("attempts/0001/owner.json", {**owner, "process": elsewhere})
    with pytest.raises(RunIsLive, match="another-pod"):
        claim_it(local_store)


def test_a_pid_that_was_given_to_another_process_does_not_keep_the_run(local_store: LocalStore) -> None:
    plant_owner(local_store, 1, pid=os.getpid(), start="an earlier process")
    assert claim_it(local_store).attempt == 2


def test_a_living_owner_on_this_host_keeps_the_run_and_is_named(local_store: LocalStore) -> None:
    claim_it(local_store)
    with pytest.raises(RunIsLive, match=rf"attempt 1 .pid {os.getpid()} on .* lease of 60 s.*another name"):
        claim_it(local_store)


def test_an_owner_on_another_host_keeps_the_run_until_its_lease_is_over(local_store: LocalStore) -> None:
    plant_owner(local_store, 1, age_s=50.0, host="elsewhere")
    with pytest.raises(RunIsLive, match="elsewhere"):
        claim_it(local_store)
    plant_owner(local_store, 2, age_s=70.0, host="elsewhere")
    assert claim_it(local_store).attempt == 3


class Ahead(LocalStore):
    """A store whose clock is another than ours."""

    offset_s = 0.0

    def _info(self, key: str) -> ObjectInfo | None:
        info = super()._info(key)
        return info and dataclasses.replace(info, modified_s=info.modified_s + self.offset_s)


@pytest.mark.parametrize("offset_s", [-7200.0, 7200.0])
def test_a_lease_is_judged_by_the_stores_clock_not_by_ours(tmp_path: Path, offset_s: float) -> None:
    store = Ahead(tmp_path)
    store.offset_s = offset_s
    plant_owner(store, 1, age_s=50.0, host="elsewhere")
    with pytest.raises(RunIsLive):
        claim_it(store)
    plant_owner(store, 2, age_s=70.0, host="elsewhere")
    assert claim_it(store).attempt == 3


@pytest.mark.parametrize("differs", ["host", "boot_id"])
def test_a_process_of_another_host_or_boot_is_judged_by_its_lease_alone(local_store: LocalStore, differs: str) -> None:
    # Its pid is free here, which says nothing about it there.
    plant_owner(local_store, 1, pid=2**22 + 1, **{differs: "another"})
    with pytest.raises(RunIsLive):
        claim_it(local_store)


def test_the_highest_attempt_of_any_place_is_followed(tmp_path: Path, local_store: LocalStore) -> None:
    # The store was emptied or restored: the disk still knows the attempts, whose numbers must not be given again.
    plant_owner(local_store, 4, age_s=1e6, host="elsewhere")
    claim = claim_attempt([LocalStore(tmp_path / "store"), local_store], spec_hash="h", max_wait_s=0.0)
    assert claim.attempt == 5


def test_the_owners_own_promise_counts_not_the_newcomers(local_store: LocalStore) -> None:
    plant_owner(local_store, 1, age_s=50.0, host="elsewhere")
    with pytest.raises(RunIsLive):
        claim_it(local_store, lease_ttl_s=10.0)


def test_an_attempt_that_has_ended_is_followed_at_once(local_store: LocalStore) -> None:
    claim_it(local_store).end("failed", "out of memory")
    assert claim_it(local_store).attempt == 2
    assert local_store.get_json("attempts/0001/ended.json")["detail"] == "out of memory"  # type: ignore[index]


@pytest.mark.parametrize("process", [{"host": "elsewhere"}, {}])
def test_a_lease_that_runs_out_while_waiting_is_taken_over(local_store: LocalStore, process: dict[str, str]) -> None:
    # Also of a process that lives on this host, and renews it no more.
    plant_owner(local_store, 1, age_s=59.0, **process)
    assert claim_it(local_store, max_wait_s=30.0, lease_ttl_s=0.2).attempt == 2


def test_who_is_waited_for_is_said_once(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_owner(local_store, 1, host="elsewhere")
    messages: list[str] = []
    monkeypatch.setattr(attempts, "time", Clock())
    with pytest.raises(RunIsLive):
        claim_it(local_store, max_wait_s=2.5, on_wait=messages.append)
    assert len(messages) == 1
    assert "on elsewhere" in messages[0]
    assert "waiting for its lease" in messages[0]


def test_an_owner_record_cut_short_counts_as_claimed_until_its_lease_is_over(local_store: LocalStore) -> None:
    local_store.put("attempts/0001/owner.json", b'{"attempt": 1, "tok')
    with pytest.raises(RunIsLive, match="unreadable owner record"):
        claim_it(local_store)
    os.utime(local_store.local_path("attempts/0001/owner.json"), (0, 0))
    assert claim_it(local_store).attempt == 2


def test_a_folder_without_an_owner_record_is_a_free_number(local_store: LocalStore) -> None:
    local_store.local_path("attempts/0001").mkdir(parents=True)
    assert highest_attempt(local_store) == 0
    assert claim_it(local_store).attempt == 1


def test_the_overtaken_owner_stops_at_its_next_beat(local_store: LocalStore) -> None:
    old = claim_it(local_store)
    old.beat()
    plant_owner(local_store, 2)
    with pytest.raises(Overtaken, match=r"attempt 1 .* overtaken by attempt 2"):
        old.beat()


def test_of_two_winners_of_one_number_the_one_that_was_written_over_stops(local_store: LocalStore) -> None:
    # What a service does that checks If-None-Match before it writes.
    first = claim_it(local_store)
    first.beat()
    local_store.delete("attempts/0001/owner.json")
    plant_owner(local_store, 1)
    with pytest.raises(Overtaken, match=r"attempt 1 .* claimed over this one"):
        first.beat()
    first.end("overtaken")
    assert not local_store.exists("attempts/0001/ended.json"), "the attempt is the other one's, and goes on"


def test_an_attempt_known_in_only_one_place_overtakes_too(tmp_path: Path, local_store: LocalStore) -> None:
    # A shared local volume shows the newer owner even while the object store is away, and the other way round.
    other = LocalStore(tmp_path / "other", policy=local_store.policy)
    plant_owner(other, 2)
    check_owner([local_store], 1, "mine")
    with pytest.raises(Overtaken):
        check_owner([local_store, other], 1, "mine")


def test_a_claim_is_recorded_in_every_place(tmp_path: Path, local_store: LocalStore) -> None:
    other = LocalStore(tmp_path / "other", policy=local_store.policy)
    claim_attempt([other, local_store], spec_hash="h")
    assert other.get("attempts/0001/owner.json") == local_store.get("attempts/0001/owner.json")
