"""Attempts of a run: claiming the next number, the lease that keeps it, and the check that stops an overtaken writer."""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opd.errors import AlreadyExists, CorruptRecord, LeaseLost, Overtaken, RunIsLive, StoreUnavailable
from opd.runs.process import ProcessIdentity, is_lock_free, lock_alive, this_process
from opd.store.base import RetryPolicy, Store, json_bytes
from opd.store.local import LocalStore

logger = logging.getLogger(__name__)

ATTEMPTS_FOLDER = "attempts"
# str.isdigit is true of "²" too, and int() refuses thousands of digits.
_NUMBER = re.compile(r"[0-9]{1,9}")
OWNER_FILE = "owner.json"
HEARTBEAT_FILE = "heartbeat.json"
ENDED_FILE = "ended.json"
DEFAULT_LEASE_TTL_S = 60.0
# Beats in one lease: three may be lost before anybody takes over.
BEATS_PER_LEASE = 4
# A terminating pod may go on beating through its grace period (30 s by default): wait for it, then one lease more.
LEASES_TO_WAIT = 2.5


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The content of owner.json; `token` makes each claim's bytes its own, `lease_ttl_s` is this owner's promise."""

    attempt: int
    token: str
    process: ProcessIdentity
    started_at_s: float
    lease_ttl_s: float
    spec_hash: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Owner:
        return cls(**{**record, "process": ProcessIdentity(**record["process"])})


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Why the highest attempt cannot be taken over yet; `is_local` when its living process was seen on this host."""

    message: str
    last_beat_s: float
    is_local: bool


def attempt_prefix(attempt: int) -> str:
    return f"{ATTEMPTS_FOLDER}/{attempt:04d}"


def attempt_of(name: str) -> int | None:
    """The number of an attempt's folder name, None for other names."""
    return int(name) if _NUMBER.fullmatch(name) else None


def attempt_numbers(store: Store) -> list[int]:
    """Numbers with a folder under attempts/, ascending; a number counts as claimed only with its owner.json."""
    return sorted(number for name in store.children(ATTEMPTS_FOLDER) if (number := attempt_of(name)) is not None)


def highest_attempt(store: Store, *, above: int = 0) -> int:
    """The number that owns the run, 0 before the first claim; `above` where no higher one has claimed it."""
    for attempt in reversed(attempt_numbers(store)):
        if attempt <= above:
            break
        if store.exists(f"{attempt_prefix(attempt)}/{OWNER_FILE}"):
            return attempt
    return above


def read_owner(store: Store, attempt: int) -> Owner | None:
    """The owner of an attempt, None if its record was cut short by a kill on a file system without hard links."""
    try:
        record = store.get_json(f"{attempt_prefix(attempt)}/{OWNER_FILE}")
        return Owner.from_json(record) if record is not None else None
    except (CorruptRecord, KeyError, TypeError) as error:
        logger.warning("attempt %d: unreadable owner record (%s); only its lease counts", attempt, error)
        return None


def _other_owner(store: Store, attempt: int, token: str) -> Owner | None:
    """Who owns the attempt by the store's record, None if it is the token's claim or cannot be told."""
    owner = read_owner(store, attempt)
    return owner if owner is not None and owner.token != token else None


def check_owner(stores: Sequence[Store], attempt: int, token: str) -> None:
    """Raises Overtaken if the run is another's by now; every writer asks before it commits.

    That is, if any of the run's stores knows a higher attempt, or this one under another claim's token. The number alone
    would do if every store kept its word, but some services check a condition first and write later (versitygw before
    1.8: two winners in 5 to 9 % of races), and then the claim that was written over has to give way.
    """
    for store in stores:
        highest = highest_attempt(store, above=attempt)
        if highest > attempt:
            raise Overtaken(
                f"attempt {attempt} of {store.url} was overtaken by attempt {highest}: stopping without another write"
            )
        if (winner := _other_owner(store, attempt, token)) is not None:
            raise Overtaken(
                f"attempt {attempt} of {store.url} was claimed over this one by process {winner.process.pid} on "
                f"{winner.process.host}: the store let two create-only writes of one object succeed; stopping without "
                "another write"
            )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One owned attempt; `stores` are the arbiter (first) and, if it is another place, the local run directory."""

    stores: tuple[Store, ...]
    owner: Owner

    @property
    def attempt(self) -> int:
        return self.owner.attempt

    @property
    def prefix(self) -> str:
        return attempt_prefix(self.attempt)

    def with_policy(self, policy: RetryPolicy) -> Claim:
        """The same claim with another patience for a store that is away."""
        return dataclasses.replace(self, stores=tuple(store.with_policy(policy) for store in self.stores))

    def check(self) -> None:
        check_owner(self.stores, self.attempt, self.owner.token)

    def beat(self, progress: Mapping[str, Any] | None = None) -> None:
        """Renews the lease, telling how far the run is, then stops the writer if it was overtaken.

        Raises:
            Overtaken: see `check_owner`.
            StoreError: the store is away; the lease runs on.
        """
        self.stores[0].put_json(
            f"{self.prefix}/{HEARTBEAT_FILE}", {"token": self.owner.token, "time_s": time.time(), **(progress or {})}
        )
        self.check()

    def end(self, outcome: str, detail: str = "") -> None:
        """Says that this attempt writes no more, so that the next one need not wait for the lease; local disk first.

        Where another claim came over this one the attempt is not this one's to end.
        """
        record = {"token": self.owner.token, "outcome": outcome, "detail": detail, "time_s": time.time()}
        for store in reversed(self.stores):
            if _other_owner(store, self.attempt, self.owner.token) is not None:
                continue
            store.put_json(f"{self.prefix}/{ENDED_FILE}", record)


def claim_attempt(
    stores: Sequence[Store],
    *,
    spec_hash: str,
    lease_ttl_s: float = DEFAULT_LEASE_TTL_S,
    max_wait_s: float | None = None,
    on_wait: Callable[[str], None] = logger.warning,
) -> Claim:
    """Claims the number after the highest one, taking over from an owner that is gone.

    An owner that has ended, or whose process is gone from this host or, by its lock, from this kernel, is followed at once; any
    other one when its lease has run out by the store's own clock.

    Args:
        stores: run directories, the arbiter first.
        max_wait_s: how long a living owner is waited for; LEASES_TO_WAIT leases by default.

    Raises:
        RunIsLive: the owner went on renewing its lease.
        CreateOnlyUnsupported: the arbiter cannot tell who was first.
    """
    arbiter = stores[0]
    store_clock_offset_s = arbiter.check_create_only() - time.monotonic()
    waited_from_s = time.monotonic()
    deadline_s = waited_from_s + (LEASES_TO_WAIT * lease_ttl_s if max_wait_s is None else max_wait_s)
    first_beat_s: float | None = None
    seen = _Sightings()
    while True:
        highest = max(highest_attempt(store) for store in stores)
        obstacle = _obstacle(stores, highest, time.monotonic() + store_clock_offset_s, lease_ttl_s, seen)
        if obstacle is None:
            claim = _try_claim(stores, highest + 1, spec_hash, lease_ttl_s)
            if claim is not None:
                return claim
            continue  # another process won this number: look at its lease
        renewed = first_beat_s is not None and obstacle.last_beat_s > first_beat_s
        if time.monotonic() >= deadline_s or (obstacle.is_local and renewed):
            raise RunIsLive(f"{obstacle.message}; wait for its end, cancel it, or start under another name")
        if first_beat_s is None:
            first_beat_s = obstacle.last_beat_s
            on_wait(f"{obstacle.message}; waiting for its lease to run out")
        time.sleep(min(1.0, lease_ttl_s / (2 * BEATS_PER_LEASE)))


def _try_claim(stores: Sequence[Store], attempt: int, spec_hash: str, lease_ttl_s: float) -> Claim | None:
    owner = Owner(
        attempt=attempt,
        token=uuid.uuid4().hex,
        process=this_process(),
        started_at_s=time.time(),
        lease_ttl_s=lease_ttl_s,
        spec_hash=spec_hash,
    )
    key, data = f"{attempt_prefix(attempt)}/{OWNER_FILE}", json_bytes(owner.to_json())
    try:
        stores[0].create(key, data)
    except AlreadyExists:
        return None
    for store in stores[1:]:
        store.create(key, data)
    for store in stores:
        if isinstance(store, LocalStore):
            lock_alive(store.local_path(attempt_prefix(attempt)), owner.token)
    return Claim(stores=tuple(stores), owner=owner)


def _has_let_go(stores: Sequence[Store], owner: Owner) -> bool:
    """Whether the owner is gone by its lock, which pods of one node see of each other."""
    folders = [store.local_path(attempt_prefix(owner.attempt)) for store in stores if isinstance(store, LocalStore)]
    return owner.process.is_of_this_kernel() and any(is_lock_free(folder, owner.token) for folder in folders)


@dataclass
class _Sightings:
    """Since when, by our own clock, an attempt's last sign of life has been the same one."""

    attempt: int = 0
    last_beat_s: float = 0.0
    since_s: float = 0.0
    is_renewed: bool = False

    def age_s(self, attempt: int, last_beat_s: float) -> float:
        """Seconds since this sign of life was first seen from here; `is_renewed` once it is not the first of its attempt."""
        if (self.attempt, self.last_beat_s) != (attempt, last_beat_s):
            self.is_renewed = self.attempt == attempt
            self.attempt, self.last_beat_s, self.since_s = attempt, last_beat_s, time.monotonic()
        return time.monotonic() - self.since_s


def _obstacle(
    stores: Sequence[Store], attempt: int, store_now_s: float, default_ttl_s: float, seen: _Sightings
) -> Obstacle | None:
    """What keeps `attempt` from being taken over, None if nothing does.

    A lease is over when its owner's last sign of life is older than its term by the store's own clock, or when a whole term
    has passed here without another one. Only the latter counts once another one was seen: a store's clock that is set back
    makes a living owner look old, and a dead one's last sign of life lie in the future.
    """
    prefix = attempt_prefix(attempt)
    if attempt == 0 or any(store.exists(f"{prefix}/{ENDED_FILE}") for store in stores):
        return None
    store = stores[0]
    owner = read_owner(store, attempt)
    gone = owner.process.is_gone() if owner else None
    if gone or (gone is None and owner is not None and _has_let_go(stores, owner)):
        return None
    # The heartbeat is the later one, whatever a clock that was set in between says.
    mark = store.info(f"{prefix}/{HEARTBEAT_FILE}") or store.info(f"{prefix}/{OWNER_FILE}")
    last_beat_s = mark.modified_s if mark is not None else 0.0
    ttl_s = owner.lease_ttl_s if owner else default_ttl_s
    age_s = store_now_s - last_beat_s
    unchanged_s = seen.age_s(attempt, last_beat_s)
    if unchanged_s > ttl_s or (age_s > ttl_s and not seen.is_renewed):
        return None
    who = f"pid {owner.process.pid} on {owner.process.host}" if owner else "an unreadable owner record"
    return Obstacle(
        message=f"run {store.url} is held by attempt {attempt} ({who}), last sign of life {max(age_s, 0):.0f} s ago "
        f"of a lease of {ttl_s:g} s",
        last_beat_s=last_beat_s,
        is_local=gone is False,
    )


OUTAGE_S = 1800.0
"""An unreachable store stops nobody for so long: no other attempt can claim the run there, unless only this node is cut off."""


class Watch:
    """Calls `beat` every `interval_s` and remembers when another attempt has overtaken this one.

    The attempt must end if the lease was not renewed for `term_s`, or for `outage_s` while the store is unreachable.

    Args:
        end: asks the attempt to save and end; None lets `check` raise at once.
    """

    def __init__(
        self,
        *,
        beat: Callable[[], None],
        interval_s: float,
        term_s: float = float("inf"),
        outage_s: float = OUTAGE_S,
        end: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.beat = beat
        self.interval_s = interval_s
        self.term_s, self.outage_s = term_s, max(outage_s, term_s)
        self.lost: LeaseLost | None = None
        """The reason why the attempt must end, once its lease is too old."""
        self._end = end
        self._clock = clock
        self._overtaken: Overtaken | None = None
        self._trouble: Exception | None = None
        self._renewed_s = self._excused_s = clock()
        self._has_warned = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; the lease counts from now."""
        self._renewed_s = self._excused_s = self._clock()
        self._thread = threading.Thread(target=self._run, name="opd-run-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise what stops the attempt at once.

        Raises:
            Overtaken: a beat found that another attempt owns the run.
            LeaseLost: the lease is too old; with `end`, only where the attempt has gone on for another step after it was asked.
        """
        was_asked = self.lost is not None
        if self._overtaken is None and not was_asked and self._clock() - self._excused_s > self.term_s:
            self._beat()  # the thread may have stood still with the whole process
        if self._overtaken is not None:
            raise Overtaken(str(self._overtaken))
        if self.lost is not None and ((was_asked and self._has_warned) or self._end is None):
            raise LeaseLost(str(self.lost))
        self._has_warned = self.lost is not None

    def _run(self) -> None:
        while self._overtaken is None and not self._stop.wait(self.interval_s):
            self._beat()

    def _beat(self) -> None:
        """Beat once; ask the attempt to end if the lease is too old after that."""
        trouble: Exception | None = None
        try:
            self.beat()
        except Overtaken as error:
            self._overtaken = error
            logger.error("%s", error)
        except Exception as error:  # noqa: BLE001 - this thread keeps the run: it must survive any answer of a store
            trouble = error
            if type(error) is not type(self._trouble):
                logger.warning("lease not renewed, another attempt may take over when it runs out: %r", error)
        now_s = self._clock()
        if trouble is None:
            self._renewed_s = now_s
        if trouble is None or isinstance(trouble, StoreUnavailable):
            self._excused_s = now_s
        self._trouble = trouble
        if trouble is not None and self.lost is None:
            self._end_if_lost(now_s, trouble)

    def _end_if_lost(self, now_s: float, trouble: Exception) -> None:
        age_s = now_s - self._renewed_s
        if now_s - self._excused_s <= self.term_s and age_s <= self.outage_s:
            return
        allowed_s = self.outage_s if isinstance(trouble, StoreUnavailable) else self.term_s
        self.lost = LeaseLost(
            f"the lease was last renewed {age_s:.0f} s ago and {allowed_s:g} s are allowed, so another attempt may own the "
            f"run; the last answer was {trouble!r}. This attempt saves on its own disk and ends. Fix: give it access to the "
            "store, then start it again"
        )
        logger.error("%s", self.lost)
        if self._end is not None:
            self._end()
