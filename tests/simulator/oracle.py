"""The truth about a run, apart from its processes' knowledge: what was saved, reported safe, logged and finished."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from tests.simulator.scheduler import Failure

_METRICS = re.compile(r"/attempts/(\d+)/metrics\.jsonl")
_STEP = re.compile(r"/checkpoints/global_step_(\d+)/")
NUM_REPEATS = 3
LEASE_S = 60.0


def content(attempt: int, step: int, rank: int, part: str, state: int) -> bytes:
    """Return a file of a checkpoint, with the attempt that wrote it and the state of the model."""
    return f"{part} step {step} rank {rank} attempt {attempt} state {state}\n".encode() * NUM_REPEATS


def state_in(data: bytes) -> int:
    """Return the state in a file of a checkpoint, 0 in a file that has rotted."""
    found = re.search(rb" state (\d+)\n", data)
    return int(found[1]) if found else 0


@dataclass
class Safe:
    """A step of which a save has said that it is sealed: by whom, on which disks, and whether in the store."""

    attempt: int
    disks: tuple[Any, ...]
    is_in_store: bool


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Rows of an attempt that a stray request has taken out of the store: which kind, sent by whom, and when it took effect."""

    attempt: int
    stray: str
    author: int
    time_s: float


class Oracle:
    """Holds every report of the control code against what it promises; a broken promise is a `Failure`."""

    def __init__(self, world: Any):
        self.world = world
        self.safe: dict[int, Safe] = {}
        self.tokens: dict[int, str] = {}
        self.fenced: dict[tuple[int, int], bool] = {}
        # The model of each attempt after each of its steps: an attempt trains otherwise than the one before.
        self.states: dict[tuple[int, int], int] = {}
        # Attempts that were marked as ended while they lived; they may remove the mark.
        self.handed_over: set[int] = set()
        self._num_faults_then = 0
        self.is_finished = False
        # Steps whose copy in the store was changed after it was reported safe, by a late request or an overtaken attempt.
        # The hashes reject it, and the step before is taken.
        self.spoiled: set[int] = set()
        # Objects of a step that a late request changed after its COMPLETE was written.
        self.strays: dict[int, set[str]] = {}
        # By key, until it is written again.
        self.taken: dict[str, Taken] = {}
        # The attempt that ends the run, since when, and the attempts whose metrics its disk has.
        self.ending_attempt, self.ending_s, self.ending_has = 0, float("inf"), frozenset[int]()
        self.is_short_excused = False
        # Copies that have gone bad by themselves since their step was begun.
        self.rotten: dict[int, list[tuple[Any, bool]]] = {}
        self.rot_s: dict[int, float] = {}
        # Rows that an attempt has written although it should have ended by then.
        self.num_late_rows: dict[int, int] = {}

    def fail(self, what: str) -> None:
        raise Failure(what)

    # ---- claims ----------------------------------------------------------------------------------------------------

    def claimed(self, attempt: int, token: str) -> None:
        if self.tokens.setdefault(attempt, token) != token:
            self.fail(f"two processes own attempt {attempt}")
        is_held = self.world.lives(attempt - 1, for_s=LEASE_S) and attempt - 1 not in self.handed_over
        last_s = self.world.sign_of_life_s(attempt - 1) if is_held else None
        if last_s is not None and not self.world.has_clock_jumped:
            age_s = self.world.store_now_s() - last_s
            if age_s < LEASE_S / 2:
                self.fail(
                    f"attempt {attempt} has taken the run over from a living one that renewed its lease {age_s:.0f} s ago"
                )

    def fence(self, owner: Any, name: str, attempt: int) -> None:
        """Fail a call of the method that an attempt begins after it was overtaken, and that goes through."""
        call = getattr(owner, name)

        def fenced(*arguments: Any, **more: Any) -> Any:
            was_fenced = self.highest() > attempt
            answer = call(*arguments, **more)
            if was_fenced:
                self.fail(f"attempt {attempt} was overtaken, and its {name} of {type(owner).__name__} went through")
            return answer

        setattr(owner, name, fenced)

    def hands_over(self, attempt: int) -> None:
        self.handed_over.add(attempt)
        self._num_faults_then = self._num_faults()

    def taken_back(self, attempt: int) -> None:
        """Judge the marks of an end that was taken back: after no fault in between there is none."""
        key = f"attempts/{attempt:04d}/ended.json"
        if self._num_faults() == self._num_faults_then and (self.world.stored(key) or self.world.is_here(key)):
            self.fail(f"attempt {attempt} has taken back its end, and {key} is still there")

    def _num_faults(self) -> int:
        disks = self.world.current.process.machine.mounts.values()
        return self.world.num_faults + sum(disk.read_only_until_s > self.world.now_s for disk in disks)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def sealed(self, step: int, attempt: int, disks: list[Any], *, is_in_store: bool) -> None:
        if attempt < self.highest():
            return  # overtaken since it last looked: no process relies on it
        self.spoiled.discard(step)
        self.safe[step] = Safe(attempt, tuple(disks), is_in_store)
        if is_in_store and self.strays.get(
            step
        ):  # after its last object was written, and before the save has said that it is sealed
            self._spoil(step)
        for place, is_store in self.rotten.get(step, ()):  # before the save has said that it is sealed
            self._lost_copy(self.safe[step], place, is_store=is_store)

    def begun(self, step: int) -> None:
        self.safe.pop(step, None)
        self.rotten.pop(step, None)
        self.strays.pop(step, None)

    def wiped(self, disk: Any) -> None:
        for step, safe in list(self.safe.items()):
            if disk in safe.disks:
                safe.disks = ()
                if not safe.is_in_store:
                    del self.safe[step]

    def rotted(self, step: int, place: Any, *, is_store: bool) -> None:
        """Note that a copy of a sealed step is broken: on a disk, in the bucket (None), or in the store's folder."""
        self.rot_s[step] = self.world.now_s
        self.rotten.setdefault(step, []).append((place, is_store))
        if step in self.safe:
            self._lost_copy(self.safe[step], place, is_store=is_store)
        self._let_go_before(step)

    @staticmethod
    def _lost_copy(safe: Safe, place: Any, *, is_store: bool) -> None:
        if place is None or is_store:
            safe.is_in_store = False
        elif place in safe.disks:
            safe.disks = ()

    def _let_go_before(self, step: int) -> None:
        """Nothing older than a spoiled step is promised where retention may have let it go."""
        if self.world.plan.keep_last is not None:
            for older in [known for known in self.safe if known < step]:
                del self.safe[older]

    def changed(self, key: str, author: int, stray: str, *, is_shorter: bool = False) -> None:
        """An object is not what it was."""
        if metrics := _METRICS.search(key):
            self.taken.pop(key, None)
            if stray and is_shorter:
                self.taken[key] = Taken(attempt=int(metrics[1]), stray=stray, author=author, time_s=self.world.now_s)
            return
        found = _STEP.search(key)
        if found is None:
            return
        step = int(found[1])
        strays, safe = self.strays.setdefault(step, set()), self.safe.get(step)
        if stray:
            strays.add(key)
        elif key.endswith("/COMPLETE"):  # what came before it, the seal has to have seen
            strays.clear()
        if safe is not None and safe.is_in_store and (stray or author < safe.attempt):
            self._spoil(step)

    def _spoil(self, step: int) -> None:
        """The store's copy of a sealed step is not what its attempt wrote."""
        self.spoiled.add(step)
        self._let_go_before(step)

    def loaded(self, step: int, attempt: int, rank: int, part: str, data: bytes) -> None:
        """A rank, or the driver, has read one file of a checkpoint that was accepted."""
        has_rotted = self.rot_s.get(step, -1.0) >= self.world.current.process.chose_s
        if (
            data != content(attempt, step, rank, part, self.states[attempt, step]) and not has_rotted
        ):  # since it was hashed
            self.fail(f"step {step} of attempt {attempt}: rank {rank} has loaded as {part} {data[:80]!r}")

    def chosen(
        self, step: int, attempt: int, disks: list[Any], *, met_read_faults: bool, rejected: tuple[str, ...]
    ) -> None:
        """Judge where an attempt resumes: nothing reported safe may be lost, no older attempt's copy taken for a newer one's."""
        there = [
            known
            for known, safe in self.safe.items()
            if (safe.is_in_store and known not in self.spoiled)
            or (not met_read_faults and safe.disks and safe.disks == tuple(disks))
        ]
        newest = max(there, default=0)
        if step < newest:
            self.fail(
                f"step {newest} was reported safe, and an attempt goes on from step {step}; passed over: {rejected}"
            )
        if step in there and attempt < self.safe[step].attempt:
            self.fail(
                f"step {step} of attempt {self.safe[step].attempt} was reported safe, and the copy of attempt {attempt} is taken"
            )

    def uploaded(self, disks: list[Any], faults: int) -> None:
        """Judge the store after an upload of what it lacked: it holds the steps of these disks as the last attempt saved them.

        Args:
            faults: store faults that came meanwhile; after one nothing is promised.
        """
        for step, safe in self.safe.items():
            if faults or safe.disks != tuple(disks) or step in self.spoiled or self.rotten.get(step):
                continue
            stored = self.world.stored(f"checkpoints/global_step_{step}/manifest.json")
            if stored is not None and json.loads(stored)["attempt"] < safe.attempt:
                self.fail(
                    f"the store keeps an older attempt's copy of step {step}, which attempt {safe.attempt} saved again"
                )

    def watch_retention(self, checkpoints: Any, keep_every: int | None) -> None:
        """Fail a deletion of a safe step that retention keeps."""
        prune = checkpoints.prune

        def pruned(**options: Any) -> list[int]:
            kept = [step for step in self.safe if keep_every and step % keep_every == 0]
            deleted: list[int] = prune(**options)
            if lost := [step for step in deleted if step in kept]:
                self.fail(f"retention has deleted steps {lost}, multiples of {keep_every}")
            return deleted

        checkpoints.prune = pruned

    def resumed(self, step: int) -> None:
        """Note that it continues from there: later steps are not promised any more."""
        for later in [known for known in self.safe if known > step]:
            del self.safe[later]

    def trained(self, attempt: int, step: int, before: int) -> int:
        """Return what an attempt makes of the model in a step."""
        state = hashlib.blake2b(f"{before} {step} {attempt}".encode(), digest_size=4).digest()
        self.states[attempt, step] = int.from_bytes(state, "big")
        return self.states[attempt, step]

    # ---- metrics ---------------------------------------------------------------------------------------------------

    def highest(self) -> int:
        """The attempt that owns the run by the store that decides."""
        return max(self.world.claimed_attempts(), default=0)

    def logged(self, attempt: int, step: int, *, was_fenced: bool, storeless_s: float) -> None:
        """Judge a row: an attempt that has had no store for its lease finishes its step, is asked to end, and ends."""
        self.fenced[attempt, step] = was_fenced
        if storeless_s > 2 * LEASE_S:  # a beat, the lease, and a step that was begun within it
            self.num_late_rows[attempt] = self.num_late_rows.get(attempt, 0) + 1
            if self.num_late_rows[attempt] > 1:
                self.fail(f"attempt {attempt} has had no store for {storeless_s:.0f} s, and trains on")

    def has_rows(self, rows: list[dict[str, Any]], until: int, when: str) -> bool:
        """Each step once, with its own numbers, of an attempt that owned the run when it wrote them; False if excused."""
        steps = [row["step"] for row in rows if row["step"] <= until]
        if steps != list(range(1, until + 1)):
            if self._were_taken():
                return False
            self.fail(f"{when}: rows of steps {steps}, expected 1 to {until}")
        for row in rows:
            if row["step"] <= until:
                if row.get("state") != self.states.get((row["attempt"], row["step"])):
                    self.fail(f"{when}: the row of step {row['step']} says {row}")
                if self.fenced.get((row["attempt"], row["step"]), True):
                    self.fail(
                        f"{when}: the row of step {row['step']} is of attempt {row['attempt']}, which was overtaken"
                    )

        return True

    def _were_taken(self) -> bool:
        """Return True if a request that nothing can wait for removed rows, and no disk that is asked has them.

        Not by one that the attempt itself knows to be without an answer: it must not have let that take anything away.
        """
        for taken in self.taken.values():
            is_unknown = taken.stray == "twice" or taken.author != self.ending_attempt
            if self.is_finished:
                has_them = taken.attempt in self.ending_has and taken.time_s < self.ending_s
            else:
                has_them = self.world.is_here(_metrics_of(taken.attempt))
            if is_unknown and not has_them:
                return True
        return False

    # ---- the end ---------------------------------------------------------------------------------------------------

    def ending(self, attempt: int) -> None:
        """The attempt has read the whole history, and is about to finish the run."""
        self.is_short_excused = self._were_taken()
        self.ending_attempt, self.ending_s = attempt, self.world.now_s
        self.ending_has = frozenset(n for n in range(attempt + 1) if self.world.is_here(_metrics_of(n)))

    def finished(self) -> None:
        self.is_finished = True
        self.check_result(self.world.stored("result.json"))

    def check_result(self, data: bytes | None) -> None:
        if data is None:
            self.fail("the run is finished and there is no result.json")
        try:
            record = json.loads(data)
        except ValueError:
            self.fail(f"the run is finished and result.json holds {data[:80]!r}")
        steps = self.world.plan.num_steps
        is_short = record["rows"] < steps and self.is_short_excused
        if (
            record["steps"] != steps
            or record["state"] != self.states.get((record["attempt"], steps), record["state"])
            or (record["rows"] != steps and not is_short)
        ):
            self.fail(f"result.json says {record}")


def _metrics_of(attempt: int) -> str:
    return f"attempts/{attempt:04d}/metrics.jsonl"
