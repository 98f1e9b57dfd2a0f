"""The coverage of a number of schedules, and their failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from tests.commit import this_commit
from tests.simulator.plan import KINDS
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
    """Sums over schedules; `coverage` counts faults by the call that met them and the kind."""

    num: int = 0
    num_decisions: int = 0
    num_spoiled: int = 0
    traces: set[int] = field(default_factory=set)
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def play(self, seed: int, world: World) -> None:
        """Plays one schedule and counts it."""
        try:
            world.play()
        except Failure as failure:
            self.failures.append((seed, str(failure)))
        self.num += 1
        self.num_decisions += world.num_decisions
        self.num_spoiled += bool(world.oracle.num_spoiled)
        self.traces.add(world.trace)
        self.coverage.update(world.coverage)

    def add(self, other: Tally) -> None:
        self.num += other.num
        self.num_decisions += other.num_decisions
        self.num_spoiled += other.num_spoiled
        self.traces |= other.traces
        self.coverage.update(other.coverage)
        self.failures += other.failures

    def table(self, took_s: float, num_processes: int) -> str:
        """Return all of it as Markdown."""
        met = Counter[str]()
        for (_, kind), num in self.coverage.items():
            met[kind] += num
        rows = {
            "commit": commit(),
            "schedules": f"{self.num:,}",
            "failed": len(self.failures),
            "time": f"{took_s:,.0f} s in {num_processes} processes, {self.num / took_s:.0f} schedules a second",
            "distinct traces": f"{len(self.traces):,}",
            "decisions of a schedule": f"{self.num_decisions / self.num:.0f}",
            "faults in a schedule": f"{met.total() / self.num:.1f}",
            "schedules in which a late or overtaken request spoiled a sealed step in the store": f"{self.num_spoiled:,}",
            **{f"fault: {kind}": f"{met[kind]:,}" for kind in sorted(KINDS)},
        }
        return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())])
