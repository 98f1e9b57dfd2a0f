"""Which scenarios there are, in their order: how each is played, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.e2e.promises import faults, kinds, quickstart, two_workers
from tests.e2e.promises.common import Look, played
from tests.e2e.scenarios import kinds as play_kinds
from tests.e2e.scenarios import losses
from tests.e2e.scenarios import quickstart as play_quickstart
from tests.e2e.scenarios import two_workers as play_two_workers
from tests.e2e.scenarios.scene import Scene


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A scenario: `play` gathers evidence and judges nothing, `promises` are judged from the evidence alone."""

    play: Callable[[Scene], None]
    promises: dict[str, Look]


SCENARIOS: dict[str, Scenario] = {
    "quickstart": Scenario(play=play_quickstart.play, promises=quickstart.PROMISES),
    "kinds": Scenario(play=play_kinds.play, promises=kinds.PROMISES),
    "two-workers": Scenario(play=play_two_workers.play, promises=two_workers.PROMISES),
    "worker-lost": Scenario(play=losses.worker_lost, promises=faults.WORKER_LOST),
    "head-lost": Scenario(play=losses.head_lost, promises=faults.HEAD_LOST),
    "submitter-lost": Scenario(play=losses.submitter_lost, promises=faults.SUBMITTER_LOST),
    "evicted-preempted": Scenario(play=losses.evicted_preempted, promises=faults.EVICTED_PREEMPTED),
}

PROMISES: dict[str, dict[str, Look]] = {
    name: {"played to its end": played, **scenario.promises} for name, scenario in SCENARIOS.items()
}
