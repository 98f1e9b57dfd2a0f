"""One schedule: machines, disks, a store, attempts of a run, and what the seed does to them.

At every call of the file system and at every request the seed decides whether something happens there. First the run
gets to a drawn number of calls, to an aim, or through a fall and then to an aim. From there on faults come close together,
for a drawn number of calls. Then nothing more happens: what is unreachable comes back, paused processes wake up, and the
run has to end.
"""

import errno
from typing import Any

from tests.simulator import bucket, seams
from tests.simulator.bucket import Bucket, Client
from tests.simulator.disk import Disk, failed
from tests.simulator.machines import MAX_ATTEMPTS, Machines
from tests.simulator.oracle import Oracle
from tests.simulator.paths import LABELS, label_of
from tests.simulator.plan import DISK_READ, DISK_WRITE, EVENTS, HARDEST, Plan, Site, Sites, draw_plan
from tests.simulator.scheduler import CALL_S, Failure, Killed, Machine, Process

ERRNOS = {"eio": errno.EIO, "no space": errno.ENOSPC, "read-only": errno.EROFS, "eio on reading": errno.EIO}
# Who reads the run when all is over.
READER = "reader"
SHORT_SLEEP_S = 1.0
# The longest time for which an attempt that waits for an answer may hold the run.
LIST_S = 600.0
# A run of these sizes ends after some 5,000 calls: one that makes so many more goes round in circles.
MAX_CALLS = 150_000
MAX_CALM_S = 20_000.0


class World(Machines):
    """Runs one schedule; `Failure` says which promise was broken.

    Args:
        limit: the most calls that are disturbed; none for 0.
        sites: where faults can be aimed; without any, none is.
    """

    def __init__(self, seed: int, limit: int, *, sites: Sites | None = None, plan: Plan | None = None):
        super().__init__(seed)
        self.plan = plan or draw_plan(self.random, sites or Sites(), limit)
        self.num_decisions = 0
        self.num_store_faults = 0
        self.oracle = Oracle(self)
        self.bucket = Bucket(self)
        self.client = Client(self, self.bucket)
        self.shared = Disk("shared", self._store_clock)
        self.machines = [Machine(f"m{number}") for number in range(3)]
        for machine in self.machines:
            machine.mounts = {
                "": Disk("root", self._store_clock),
                "disk": Disk(machine.name, self._clock_of(machine)),
                "shared": self.shared,
            }
            machine.offset_s = self.random.choice((0.0, 0.0, 7.0, -90.0, 5000.0))
        # Each kind of call, and whether it came after the first attempt; collected for a listener.
        self.met: set[tuple[Site, bool]] | None = None
        self.is_calm = False
        self.has_clock_jumped = False
        self._calm_from_s = 0.0
        self._next_pid = 100
        self._num_attempts = 0
        self._last_machine = self.machines[0]
        self._is_start_due = False
        self._countdown = 0
        self._opened_at: int | None = None
        self._fall_at = self.plan.fall[1] if self.plan.fall and not self.plan.then else 0
        self._aim_left = self.plan.aim[2] if self.plan.aim else 0
        # Whose attempt the plan ends after what it aimed at, and when.
        self._doomed_process: Process | None = None
        self._ends_at_s = 0.0
        # A fault that comes again: which, and how many times more.
        self._again, self._num_again = "", 0

    # ---- running ---------------------------------------------------------------------------------------------------

    def play(self) -> None:
        from opd.store import base

        base._JITTER.seed(self.random.random())  # of a retry's wait
        seams.enter(self)
        try:
            if not self.plan.window:
                self._calm_down()
            self._start_later(0.0)
            self.run()
            if not self.oracle.is_finished:
                raise Failure("nothing runs any more, and the run is not finished")
            self._look_back()
        finally:
            self.abandon()
            seams.enter(None)

    def _look_back(self) -> None:
        """After the end: a power cut of everything, and what a person then finds."""
        from opd.runs.metrics import read_metrics
        from opd.store.base import RetryPolicy
        from opd.store.remote import open_store

        self._calm_down()
        for disk in {disk.number: disk for machine in self.machines for disk in machine.mounts.values()}.values():
            disk.cut_power(self.random)
        self.oracle.check_result(self.stored("result.json"))
        found: list[Any] = []

        def read() -> None:
            store = open_store(self.plan.store_url or self.plan.local_root, policy=RetryPolicy(max_elapsed_s=0.0))
            found.extend(read_metrics([store.child("r")]))

        task = self.spawn(Process(self._last_machine, 1, READER), READER, read)
        self.run()
        if task.error is not None:
            raise Failure(f"the metrics of the finished run cannot be read: {task.error!r}") from task.error
        if self.oracle.has_rows(found, self.plan.num_steps, "at the end") and len(found) != self.plan.num_steps:
            raise Failure(f"the finished run has rows of steps {[row['step'] for row in found]}")

    # ---- what the control code meets -------------------------------------------------------------------------------

    def disk_call(
        self, what: str, disk: Disk, path: tuple[str, ...], shown: str, *, writes: bool, num_bytes: int = 0
    ) -> int | None:
        """Before a call: raises what the disk answers, or says how much of a write it takes. None means all."""
        kind = self._decide(what, LABELS.get(path) or label_of(path), DISK_WRITE if writes else DISK_READ)
        if kind is None and (self.is_calm or not writes):
            return None
        now_s = self.now_s
        if kind in ERRNOS:
            self.current.process.has_met_read_faults |= not writes
            raise failed(ERRNOS[kind], shown or "/".join(path), is_injected=True)
        if kind == "full for a while":
            disk.full_until_s = now_s + self.random.choice((0.05, 5.0, 100.0))
        elif kind == "read-only for a while":
            disk.read_only_until_s = now_s + self.random.choice((0.05, 5.0, 100.0))
        if writes and disk.read_only_until_s > now_s and not self.is_calm:
            raise failed(errno.EROFS, shown or "/".join(path), is_injected=True)
        if disk.full_until_s > now_s and not self.is_calm and what in ("write", "create", "mkdir"):
            taken = self.random.randrange(num_bytes) if num_bytes and kind == "full for a while" else 0
            if not taken:
                raise failed(errno.ENOSPC, shown or "/".join(path), is_injected=True)
            return taken
        return None

    def store_call(self, what: str, key: str, *, writes: bool) -> str | None:
        """Before a request: what becomes of it."""
        kind = self._decide(what, label_of(tuple(key.split("/"))), bucket.KINDS)
        until_s, attempt = self.bucket.until_s, self.current.process.attempt
        if kind == bucket.REVOKED and attempt and not self.is_calm:
            self.bucket.revoked_s.setdefault(attempt, self.now_s)
        if kind == bucket.REVOKED or attempt in self.bucket.revoked_s:
            kind = "denied"
        if kind in until_s:
            until_s[kind] = self.now_s + self.random.choice((3.0, 40.0, 100.0, 150.0, 400.0))
        if not self.is_calm:
            if until_s["outage"] > self.now_s:
                kind = "away"
            elif until_s["no writes" if writes else "no reads"] > self.now_s and (writes or what in bucket.READS):
                kind = "denied"
        self.num_store_faults += kind is not None
        return kind

    def _decide(self, what: str, label: str, kinds: tuple[str, ...]) -> str | None:
        current = self.current
        process = current.process
        if process.is_dead:
            raise Killed
        self.now_s += CALL_S
        self.num_calls += 1
        kind = None
        if not self.is_calm:
            self.num_decisions += 1
            kind = self._opening(what, label, kinds) if self._opened_at is None else self._choose(kinds)
        elif self.num_calls > MAX_CALLS or self.now_s > self._calm_from_s + MAX_CALM_S:
            raise Failure("the run neither ends nor fails, though nothing disturbs it any more")
        self.trace = hash((self.trace, what, label, kind or ""))  # None has another hash in each process
        if self.log is not None:
            self.log.append(f"{self.now_s:12.4f} {process.role:9} {current.name:14} {what:11} {label:24} {kind or ''}")
        if self.met is not None:
            self.met.add((self._site(what, label, kinds), self._num_attempts > 1))
        if kind is not None:
            self.num_faults += 1
            if kind in EVENTS:
                self._happen(kind, process)
                kind = None
        if process.has_sigterm and current is process.tasks[0]:
            process.has_sigterm = False
            if process.handler is None or not callable(process.handler):
                self.kill(process)
                self.block()
            process.handler(15, None)
        if self._due and self._due[0][0] <= self.now_s:  # goes first
            self.block(self.now_s)
        return kind

    def _choose(self, kinds: tuple[str, ...]) -> str | None:
        """Return the event at a call of the disturbed part, or None; calm down after the last event."""
        if self._doomed_process is not None:
            return self._end_of(self._doomed_process)
        if self.num_decisions > self._opened_at + self.plan.window:
            self._calm_down()
            return None
        if self._num_again and self._again in kinds:
            self._num_again -= 1
            return self._again
        self._countdown -= 1
        return self._drawn(kinds) if self._countdown <= 0 else None

    def _opening(self, what: str, label: str, kinds: tuple[str, ...]) -> str | None:
        """Play what comes before the disturbed part of the schedule, and open that part."""
        plan = self.plan
        if self._fall_at:
            if self.num_decisions < self._fall_at:
                return None
            self._fall_at = 0
            self._opened_at = None if self._aim_left else self.num_decisions
            return plan.fall[0]
        if self._aim_left and label == plan.aim[0][1] and plan.aim[0] == (what, label, self._thread()):
            self._aim_left -= plan.aim[1] in kinds or plan.aim[1] in EVENTS
            if not self._aim_left:
                self._opened_at, self._countdown = self.num_decisions, self._gap()
                if plan.then:
                    self._doomed_process, self._ends_at_s = self.current.process, self.now_s + plan.then[1]
                    return plan.aim[1]
                return self._perhaps_again(plan.aim[1], kinds)
        if self.num_decisions > plan.quiet_calls:
            self._opened_at = self.num_decisions
            return self._drawn(kinds)
        return None

    def _end_of(self, process: Process) -> str | None:
        """Return the plan's event for an attempt after the fault that it met: nothing else comes in between."""
        if self.now_s >= self._ends_at_s and self.current.process is process:
            self._doomed_process, self._opened_at = None, self.num_decisions
            if self.plan.fall:
                self._fall_at, self._opened_at = self.num_decisions + self.plan.fall[1], None
            return self.plan.then[0]
        if process.is_dead:
            self._doomed_process = None
        return None

    def _drawn(self, kinds: tuple[str, ...]) -> str | None:
        """Draw an event of the possible ones; it may come again at the next calls."""
        self._countdown = self._gap()
        return self._perhaps_again(self._draw(kinds), kinds)

    def _perhaps_again(self, kind: str | None, kinds: tuple[str, ...]) -> str | None:
        """The same, which the next calls may meet, too: credentials that have run out are not back at the next request."""
        if kind in kinds and self.random.random() < 0.3:
            self._again, self._num_again = kind, self.random.choice((1, 2, 4, 8, 16))
        return kind

    def oversleep(self, seconds: float) -> None:
        """Sleep as `time.sleep` does here."""
        self.sleep(seconds * self.plan.oversleep if seconds <= SHORT_SLEEP_S else seconds)

    def _thread(self) -> str:
        name = self.current.name
        return "rank" if name.startswith("rank ") else name

    def _site(self, what: str, label: str, kinds: tuple[str, ...]) -> Site:
        where = "store" if kinds is bucket.KINDS else "disk"
        return Site(what=what, label=label, thread=self._thread(), where=where)

    def _gap(self) -> int:
        return 1 + int(self.random.expovariate(1.0 / self.plan.mean_gap))

    def _draw(self, kinds: tuple[str, ...]) -> str | None:
        """Draw an event that the plan allows here, for this call or around it."""
        enabled = self.plan.enabled
        these = [kind for kind in kinds if kind in enabled]
        around = [kind for kind in (*EVENTS, *HARDEST) if kind in enabled]
        if these and (not around or self.random.random() < 0.6):
            return self.random.choice(these)
        return self.random.choice(around) if around else None

    # ---- attempts --------------------------------------------------------------------------------------------------

    def _start_later(self, seconds: float) -> None:
        if not self._is_start_due:
            self._is_start_due = True
            self.at(self.now_s + seconds, self._start_due)

    def _start_due(self) -> None:
        self._is_start_due = False
        if not self.oracle.is_finished:
            same = self.is_calm or self.random.random() < 0.4
            self._start(self._last_machine if same else self.random.choice(self._places()))

    def _places(self) -> list[Machine]:
        """Return the machines on which an attempt may run: all, or the one with the run's only disk."""
        return self.machines if self.plan.store_url or self.plan.local_root.startswith("/shared") else self.machines[:1]

    def _start(self, machine: Machine) -> None:
        from tests.simulator import trainer

        self._num_attempts += 1
        if self._num_attempts >= MAX_ATTEMPTS:
            self._opened_at = -self.plan.window  # that was all
            if self._num_attempts > 2 * MAX_ATTEMPTS:
                raise Failure(f"{self._num_attempts} attempts, and the run is not finished")
        self._last_machine = machine
        process = self._process(machine, f"driver {self._num_attempts}")
        process.is_driver = True
        was_calm = self.is_calm
        process.on_end.append(lambda: self._attempt_ended(process, was_calm))
        self.spawn(process, "main", lambda: trainer.attempt(self))

    def _attempt_ended(self, process: Process, was_calm: bool) -> None:
        from opd.errors import Overtaken, RunError, RunIsLive, Stopped

        error = process.error
        if error is not None:
            known = isinstance(error, RunError | Stopped) or _is_injected(error)
            excused = isinstance(error, Overtaken | RunIsLive)
            if not known or (was_calm and not excused):
                raise Failure(f"{process.role} ended with {type(error).__name__}: {error}") from error
        if not self.oracle.is_finished:
            calm_s = LIST_S / MAX_ATTEMPTS if isinstance(error, RunIsLive) else 1.0
            self._start_later(calm_s if self.is_calm else self.random.choice((0.5, 5.0, 30.0, 100.0)))

    def start_ranks(self, driver: Process) -> list[Process]:
        """The workers of an attempt, which end with its driver, or a while later."""
        ranks = []
        for rank in range(self.plan.num_ranks):
            index = self.machines.index(driver.machine)
            machine = self.machines[(index + rank) % 3] if self.plan.is_spread else driver.machine
            process = self._process(machine, f"{driver.role}.{rank}")
            self.spawn(process, "worker", self.block)
            ranks.append(process)
        late_s = self.random.choice((0.0, 0.0, 3.0, 40.0))
        driver.on_end.append(lambda: self.at(self.now_s + late_s, lambda: [self.kill(process) for process in ranks]))
        return ranks


def _is_injected(error: BaseException) -> bool:
    """Return True if a fault of the simulator is in its chain of causes."""
    link: BaseException | None = error
    while link is not None:
        if getattr(link, "is_injected", False):
            return True
        link = link.__cause__ or link.__context__
    return False
