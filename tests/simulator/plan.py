"""The draws of a schedule before it begins: the shape of the run, its faults, and their aims."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulator import bucket

# What happens to processes, machines and clocks, at any call.
EVENTS = ("kill", "pause", "delay", "power", "wipe", "rot", "sigterm", "clock", "second", "ask")
# Drawn more often: they leave the most.
HARDEST = ("power", "power", "kill", "pause")
DISK_WRITE = ("eio", "no space", "read-only", "full for a while", "read-only for a while")
DISK_READ = ("eio on reading",)
KINDS = (*EVENTS, *DISK_WRITE, *DISK_READ, *bucket.KINDS)
# What ends an attempt, so that another one has to resume.
FALLS = ("kill", "kill", "power", "power", "wipe", "wipe", "sigterm", "second")
# What holds a run's work: aimed at more often than what is said about it.
WORK = ("shard", "data.pt", "manifest.json", "COMPLETE", "metrics")
# What ends the process whose request has no answer yet, or had none, and after how long, seconds.
ENDS, ENDS_AFTER_S = ("kill", "kill", "kill", "power", "wipe", "sigterm"), (0.0, 1.0, 5.0, 10.0, 20.0)
# Steps of all lengths, without a beat of the lease or of the streams in them, and with several.
MIXED, QUICK, SLOW = PACES = ((0.1, 2.0, 12.0, 40.0), (0.1, 2.0), (12.0, 40.0))
# A gap between faults after which few schedules meet another: some bugs show only where what was aimed is all that happens.
ALONE = 1000
# The shortest schedule, decisions.
LEAST = 50
# What an undisturbed run makes at least for its start, and for each save.
CALLS_OF_A_SAVE = 150
# Of the calls that runs of a size make on average, the share after which nearly all of them still run.
SURE = 0.8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The shape of a run."""

    store_url: str | None
    local_root: str
    num_ranks: int
    is_spread: bool  # the ranks on other machines than the driver
    num_steps: int
    save_every: int
    keep_last: int | None
    keep_every: int | None
    overlap: bool  # saves during the training
    enabled: frozenset[str]
    mean_gap: int
    # How much longer a short sleep lasts than it was asked for; polling takes most calls of a run that waits.
    oversleep: float
    # How many calls after the first fault, or after `quiet_calls`, are disturbed.
    window: int
    quiet_calls: int
    # What ends an attempt, at which call; where `then` ends one before, that many calls later.
    fall: tuple[str, int] | None = None
    # Which fault comes at which call of which thread, the how manieth time.
    aim: tuple[tuple[str, str, str], str, int] | None = None
    # What then ends the attempt that it met, so many seconds later.
    then: tuple[str, float] | None = None
    # How long a step may take, seconds.
    paces: tuple[float, ...] = MIXED


@dataclass(frozen=True, kw_only=True, order=True)
class Site:
    """An aim of a fault: a kind of call, its object, its thread, and the side that answers."""

    what: str
    label: str
    thread: str
    where: str


@dataclass(kw_only=True)
class Sites:
    """Those that runs have met, by the kind of their store: in undisturbed runs, and in attempts after the first.

    `calls_of_a_save` is how many calls the undisturbed ones made for each save, the start counted as one.
    """

    first: dict[str, list[Site]] = field(default_factory=dict)
    later: dict[str, list[Site]] = field(default_factory=dict)
    calls_of_a_save: dict[str, float] = field(default_factory=dict)


def num_saves(num_steps: int, save_every: int) -> int:
    """Return the number of a run's saves, the save at its last step included."""
    return -(-num_steps // save_every)


def kinds_at(what: str, where: str) -> tuple[str, ...]:
    """Return the faults that one kind of call can meet."""
    if where == "store":
        return EVENTS + bucket.KINDS
    return EVENTS + (DISK_READ if what in ("stat", "open", "list", "read", "lock") else DISK_WRITE)


def draw_plan(draw: Any, sites: Sites, limit: int) -> Plan:
    """A run, which kinds of faults it meets how often, and where they begin."""
    place = draw.random()
    store_url, local_root = "s3://bucket/runs", "/disk/runs"
    if place < 0.20:
        store_url, local_root = None, draw.choice(("/disk/runs", "/shared/runs"))
    elif place < 0.30:
        store_url, local_root = "/shared/store", draw.choice(("/disk/runs", "/disk/runs", "/shared/runs"))
    elif place < 0.45:
        local_root = "/shared/runs"
    first, later = sites.first.get(str(store_url), []), sites.later.get(str(store_url), [])
    how = draw.choices(("aim", "late aim", "fall, then aim", "anywhere"), (20, 35, 27, 18))[0] if later else "anywhere"
    is_late = how == "late aim"
    # What comes late needs steps that are left to do, by this attempt or the next, and time to meet something.
    num_steps, save_every = draw.choice((2, 3, 3) if is_late else (1, 2, 2, 2, 2, 3, 3)), draw.choice((1, 2))
    calls_of_a_save = sites.calls_of_a_save.get(str(store_url), CALLS_OF_A_SAVE)
    num_calls = int(SURE * calls_of_a_save * (num_saves(num_steps, save_every) + 1))
    fall = aim = then = None
    quiet_calls = num_calls
    if how == "anywhere":
        quiet_calls = draw.randrange(num_calls)
    elif how == "fall, then aim":
        fall, aim = (draw.choice(FALLS), draw.randrange(1, num_calls)), _draw_aim(draw, later, is_resuming=True)
        quiet_calls += num_calls
    else:
        aim = _draw_aim(draw, first, is_late=is_late)
        then = (draw.choice(ENDS), draw.choice(ENDS_AFTER_S)) if is_late and draw.random() < 0.6 else None
        if then and draw.random() < 0.3:
            fall = (draw.choice(FALLS), draw.randrange(1, num_calls))
    paces = draw.choice((SLOW, SLOW, MIXED) if is_late else PACES)
    if aim is not None and aim[1] == bucket.REVOKED:  # whether it ends shows where it has leases' time left to train
        num_steps, paces = 8, (40.0,)
    share = draw.choice((0.1, 0.4, 0.4, 0.8))
    return Plan(
        store_url=store_url,
        local_root=local_root,
        num_ranks=draw.choice((1, 1, 1, 2)),
        is_spread=bool(store_url) and draw.random() < 0.3,
        num_steps=num_steps,
        save_every=save_every,
        keep_last=draw.choice((None, 1, 1, 2)),
        keep_every=draw.choice((None, None, 2)),
        oversleep=draw.choice((1.0, 4.0, 16.0, 16.0)),
        enabled=frozenset(kind for kind in KINDS if draw.random() < share),
        mean_gap=draw.choice((30, ALONE, ALONE) if is_late else (5, 30, 80, ALONE, ALONE) if aim else (5, 12, 30, 80)),
        window=draw.randint(min(LEAST, limit), limit),
        quiet_calls=quiet_calls,
        fall=fall,
        aim=aim,
        then=then,
        paces=paces,
        overlap=draw.random() < 0.75,
    )


def _draw_aim(
    draw: Any, sites: Sequence[Site], *, is_late: bool = False, is_resuming: bool = False
) -> tuple[tuple[str, str, str], str, int]:
    """One fault at one of the sites.

    Args:
        is_late: of requests those that change something, and mostly what becomes of them later than their sender waits.
        is_resuming: the attempt reads what an earlier one has left: of requests those that read as often as the others.
    """
    requests = [site for site in sites if site.where == "store"]
    if requests and (is_late or draw.random() < 0.6):
        reads = is_resuming and draw.random() < 0.5
        if reads or is_late:
            requests = [site for site in requests if site.what in (bucket.READS if reads else bucket.WRITES)]
        requests = [site for site in requests if site.label in WORK or draw.random() < 0.2]
        thread = draw.choice(sorted({site.thread for site in requests}))
        if is_late or draw.random() < 0.6:  # a thread with few kinds of requests is as good as one with many
            requests = [site for site in requests if site.thread == thread]
        site = draw.choice(requests)
        fates = bucket.OF_LATE if is_late else bucket.OF_WRITES if site.what in bucket.WRITES else bucket.OF_READS
        kind = draw.choice(HARDEST) if not is_late and draw.random() < 0.2 else draw.choice(draw.choice(fates))
        return (site.what, site.label, site.thread), kind, draw.choice((1, 1, 1, 2) if is_late else (1, 1, 1, 2, 2, 3))
    site, how = draw.choice(sites), draw.random()
    kinds = kinds_at(site.what, site.where)
    kind = draw.choice(HARDEST if how < 0.3 else kinds[len(EVENTS) :] if how < 0.7 else kinds)
    return (site.what, site.label, site.thread), kind, draw.choice((1, 1, 1, 1, 2, 3))
