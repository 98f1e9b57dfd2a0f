"""A number of schedules, and their failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from tests.commit import this_commit
from tests.simulator.scheduler import Failure
from tests.simulator.world import World

# Runs of these numbers show the places where a fault can be aimed: undisturbed ones, and others. They have every kind of store
# and disk, and seeds that no schedule has.
NUM_SHOWN, NUM_DISTURBED = 32, 96
FIRST_SHOWN = 10**12


commit = cache(this_commit)
"""Of the code under test, as it was at the first call."""


def describe_failure(seed: int, steps: int, what: str) -> str:
    """Return the text of a failure, with what replays it."""
    return f"FAILED seed {seed} commit {commit()}: {what}\n  replay: make simulate SEED={seed} STEPS={steps}"


@dataclass
class Tally:
    """Sums over schedules."""

    num: int = 0
    num_faults: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)

    def play(self, seed: int, world: World) -> None:
        """Plays one schedule and counts it."""
        try:
            world.play()
        except Failure as failure:
            self.failures.append((seed, str(failure)))
        self.num += 1
        self.num_faults += world.num_faults

    def add(self, other: Tally) -> None:
        self.num += other.num
        self.num_faults += other.num_faults
        self.failures += other.failures

    def table(self, took_s: float, num_processes: int) -> str:
        """Return all of it as Markdown."""
        rows = {
            "commit": commit(),
            "schedules": f"{self.num:,}",
            "failed": len(self.failures),
            "time": f"{took_s:,.0f} s in {num_processes} processes, {self.num / took_s:.0f} schedules a second",
            "faults in a schedule": f"{self.num_faults / self.num:.1f}",
        }
        return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())])
