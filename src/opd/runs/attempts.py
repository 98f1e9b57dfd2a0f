"""Attempts of a run: the claim of the next number, the wait for a living owner, and the check that stops an overtaken writer."""

import contextlib
import dataclasses
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opd.errors import AlreadyExists, CorruptRecord, Overtaken, RunIsLive
from opd.runs.lease import BEATS_PER_LEASE, boot_id, is_locked, lock_alive
from opd.store.base import Store, json_bytes

logger = logging.getLogger(__name__)

ATTEMPTS_FOLDER, STARTS_FOLDER = "attempts", "starts"
_NUMBER = re.compile(r"[0-9]{1,9}")  # str.isdigit accepts "²", and int() rejects thousands of digits
OWNER_FILE = "owner.json"
HEARTBEAT_FILE = "heartbeat.json"
ENDED_FILE = "ended.json"
LEASE_TTL_S = 60.0
# A terminating pod may beat through its grace period (30 s by default); then follows one whole lease.
LEASES_TO_WAIT = 2.5


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The content of owner.json; `token` makes the bytes of each claim unique, `lease_ttl_s` is this owner's own term."""

    attempt: int
    token: str
    host: str
    pid: int
    boot_id: str
    started_at_s: float
    lease_ttl_s: float
    spec_hash: str


def attempt_prefix(attempt: int) -> str:
    return f"{ATTEMPTS_FOLDER}/{attempt:04d}"


def attempt_of(name: str) -> int | None:
    """Return the number of an attempt's folder name, None for other names."""
    return int(name) if _NUMBER.fullmatch(name) else None


def attempt_numbers(store: Store) -> list[int]:
    """Return numbers with a folder under attempts/, ascending; only a number with an owner.json is claimed."""
    return sorted(number for name in store.children(ATTEMPTS_FOLDER) if (number := attempt_of(name)) is not None)


def highest_attempt(store: Store, *, above: int = 0) -> int:
    """Return the number that owns the run, `above` where no higher number is claimed."""
    higher = [number for number in reversed(attempt_numbers(store)) if number > above]
    return next((number for number in higher if store.exists(f"{attempt_prefix(number)}/{OWNER_FILE}")), above)


def read_owner(store: Store, attempt: int) -> Owner | None:
    """Return the owner of an attempt, None for a record cut short on a file system without hard links."""
    try:
        record = store.get_json(f"{attempt_prefix(attempt)}/{OWNER_FILE}")
        return Owner(**record) if record is not None else None
    except (CorruptRecord, TypeError) as error:
        logger.warning("attempt %d: unreadable owner record (%s); only its lease counts", attempt, error)
        return None


def check_owner(stores: Sequence[Store], attempt: int) -> None:
    """Raise Overtaken if a store knows a higher attempt; every writer calls this before it commits."""
    for store in stores:
        if (highest := highest_attempt(store, above=attempt)) > attempt:
            raise Overtaken(
                f"attempt {attempt} of {store.url} was overtaken by attempt {highest}: stopping without another write"
            )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One owned attempt; `stores` are the arbiter (first) and, if it is another place, the local run directory."""

    stores: tuple[Store, ...]
    owner: Owner

    @property
    def prefix(self) -> str:
        return attempt_prefix(self.owner.attempt)

    def check(self) -> None:
        """Raise Overtaken if a later attempt owns the run, by the stores' records."""
        check_owner(self.stores, self.owner.attempt)

    def beat(self, progress: Mapping[str, Any]) -> None:
        """Renew the lease with the run's progress, then `check`."""
        record = {"token": self.owner.token, "time_s": time.time(), **progress}
        self.stores[0].put_json(f"{self.prefix}/{HEARTBEAT_FILE}", record)
        self.check()

    def end(self, outcome: str, detail: str = "") -> None:
        """Record the attempt's last write, local disk first, so that the next attempt need not wait for the lease."""
        record = {"token": self.owner.token, "outcome": outcome, "detail": detail, "time_s": time.time()}
        for store in reversed(self.stores):
            store.put_json(f"{self.prefix}/{ENDED_FILE}", record)

    def take_back_end(self) -> None:
        """Remove the record of `end`, local disk first: the store may not answer."""
        for store in reversed(self.stores):
            store.delete(f"{self.prefix}/{ENDED_FILE}")


def claim_attempt(stores: Sequence[Store], *, spec_hash: str) -> Claim:
    """Claim the number after the highest, and take over from an owner that has ended.

    An owner with an end on record, or whose lock under this kernel is released, needs no wait. Any other owner loses the
    run after a whole lease without a new sign of life, by our own clock. RunIsLive: it renewed for LEASES_TO_WAIT leases.
    """
    stores[0].check_create_only()
    deadline_s = time.monotonic() + LEASES_TO_WAIT * LEASE_TTL_S
    first = last = None
    since_s = 0.0
    while True:
        highest = max(highest_attempt(store) for store in stores)
        asked_at_s = time.monotonic()  # this process may be paused after the store's answer
        living = _living(stores, highest)
        if living is not None and (last is None or living.sign != last.sign):
            last, since_s = living, time.monotonic()
        if living is None or asked_at_s - since_s > living.lease_ttl_s:
            if claim := _try_claim(stores, highest + 1, spec_hash):
                return claim
            continue  # another process won this number
        is_renewed = first is not None and living.sign != first.sign
        if time.monotonic() >= deadline_s or (living.is_locked and is_renewed):
            raise RunIsLive(f"{living.message}; wait for its end, cancel it, or start under another name")
        if first is None:
            first = living
            logger.warning("%s; waiting for its lease to run out", living.message)
        time.sleep(min(1.0, LEASE_TTL_S / (2 * BEATS_PER_LEASE)))


@dataclass(frozen=True, kw_only=True)
class _Living:
    """An attempt without an end: its last sign of life, its term, and True for a lock that is held on this machine."""

    sign: object
    lease_ttl_s: float
    is_locked: bool
    message: str


def _living(stores: Sequence[Store], attempt: int) -> _Living | None:
    """Return the attempt's signs of life, None after its end."""
    prefix = attempt_prefix(attempt)
    if attempt == 0 or any(store.exists(f"{prefix}/{ENDED_FILE}") for store in stores):
        return None
    owner, locks = read_owner(stores[0], attempt), set[bool | None]()
    # A lock of another kernel does not show here.
    if owner is not None and owner.boot_id and owner.boot_id == boot_id():
        locks = {is_locked(folder, owner.token) for store in stores if (folder := store.local_path(prefix))}
    if False in locks:
        return None
    beat: dict[str, Any] = {}
    with contextlib.suppress(CorruptRecord):
        beat = stores[0].get_json(f"{prefix}/{HEARTBEAT_FILE}") or {}
    who = f"pid {owner.pid} on {owner.host}" if owner else "an unreadable owner record"
    ttl_s = owner.lease_ttl_s if owner else LEASE_TTL_S
    last_s = beat.get("time_s", owner.started_at_s if owner else 0.0)
    age_s = max(time.time() - last_s, 0.0) if isinstance(last_s, int | float) else 0.0
    sign = (attempt, beat.get("token"), beat.get("time_s"))
    held = f"run {stores[0].url} is held by attempt {attempt} ({who}), last sign of life {age_s:.0f} s ago"
    return _Living(sign=sign, lease_ttl_s=ttl_s, is_locked=True in locks, message=f"{held} of a lease of {ttl_s:g} s")


def _try_claim(stores: Sequence[Store], attempt: int, spec_hash: str) -> Claim | None:
    owner = Owner(
        attempt=attempt, token=uuid.uuid4().hex, host=socket.gethostname(), pid=os.getpid(), boot_id=boot_id(),
        started_at_s=time.time(), lease_ttl_s=LEASE_TTL_S, spec_hash=spec_hash,
    )  # fmt: skip
    key, data = f"{attempt_prefix(attempt)}/{OWNER_FILE}", json_bytes(dataclasses.asdict(owner))
    try:
        stores[0].create(key, data)
    except AlreadyExists:
        return None
    for store in stores[1:]:
        store.create(key, data)
    for store in stores:
        if folder := store.local_path(attempt_prefix(attempt)):
            lock_alive(folder, owner.token)
    return Claim(stores=tuple(stores), owner=owner)
