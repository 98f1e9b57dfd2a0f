"""When and whom to kill: points in random phases at random moments, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.attempt import Attempt


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A planned kill: `delay_s` after the phase is entered for the nth time; `target` is a key of `TARGETS`."""

    phase: str
    nth: int
    delay_s: float
    target: str

    def strike(self, attempt: Attempt) -> str | None:
        """Wait for the moment and kill; the phase that was struck, None if the run had ended before."""
        if self.phase != "start-up" and not attempt.reaches(self.phase, self.nth):
            return None
        if not attempt.sleep(self.delay_s):
            return None
        phase = attempt.phase
        TARGETS[self.target](attempt)
        return phase


# Seconds after a phase begins within which a kill may fall: about as long as the phase takes on two quiet cores. Phases that a
# busy machine stretches have more.
_WINDOW_S = {
    "start-up": 14.0,
    "load": 6.0,
    "generation": 0.4,
    "update": 0.3,
    "save": 0.2,
    "upload": 0.1,
    "finish": 0.05,
}


# What dies: everything at once, as when a pod goes; the process that trains; the launcher above it. Weights of the dice.
TARGETS = {"all": Attempt.kill_tree, "driver": Attempt.kill_driver, "launcher": Attempt.kill_launcher}
_WEIGHTS = (6, 2, 2)


def plan_kills(phases: Sequence[str], *, seed: int) -> list[Kill]:
    """Return one kill a phase, in a random order; kills of `finish` come last, since they end the training."""
    dice = random.Random(seed)
    early = [phase for phase in phases if phase != "finish"]
    dice.shuffle(early)
    kills = []
    for phase in early + [phase for phase in phases if phase == "finish"]:
        in_loop = phase in ("generation", "update", "save", "upload")
        kills.append(
            Kill(
                phase=phase,
                nth=dice.choice((1, 1, 2)) if in_loop else 1,
                delay_s=dice.uniform(0.0, _WINDOW_S[phase]),
                target=dice.choices(list(TARGETS), _WEIGHTS)[0],
            )
        )
    return kills
