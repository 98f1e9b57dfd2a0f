"""Rounds of the campaign of kills: one run each, struck at points that the round's number decides.

The number draws where a strike falls, whom it meets, whether it kills or stops (SIGSTOP, then SIGCONT beside the successor),
whether the store is a folder or S3, and whether the disk is lost. `python -m tests.chaos --rounds 25` goes on where an earlier
call ended: a round that stands in rounds.json and ended well is not played again.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from tests.chaos.context import Context
from tests.chaos.kill_plan import plan_kills
from tests.chaos.kills import EQUAL, struck_again_and_again
from tests.chaos.scenario import Scenario

NUM_STRIKES = 6
_PHASES = ("start-up", "load", "generation", "update", "save", "upload", "finish")
_WEIGHTS = (2, 1, 3, 3, 4, 4, 1)
_SHARE_STOPPED = 0.2
ROWS = Path(__file__).parent / "rounds.json"
TABLE = Path(__file__).parent / "ROUNDS.md"
TITLE = f"Kills: the rounds of `make chaos ARGS=--rounds`, {NUM_STRIKES} strikes each"


def name_of(number: int) -> str:
    """`round-0007`."""
    return f"round-{number:04d}"


def named(name: str) -> Scenario | None:
    """The round of that name as a row of a table; None: it is no round's name."""
    word, _, digits = name.partition("-")
    if word != "round" or not digits.isdecimal():
        return None
    return Scenario(
        name=name,
        done=f"{NUM_STRIKES} strikes at points that the round's number draws",
        promised=EQUAL,
        run=partial(_play, int(digits)),
    )


def _play(number: int, context: Context) -> str:
    dice = random.Random(f"{context.seed}:{number}")
    phases = dice.choices(_PHASES, _WEIGHTS, k=NUM_STRIKES)
    kills = plan_kills(phases, seed=dice.getrandbits(32), share_stopped=_SHARE_STOPPED)
    if dice.random() < 0.5:
        return struck_again_and_again(context, kills, lost_after=())
    lost_after = [count for count in range(1, NUM_STRIKES) if dice.random() < 0.3]
    with context.s3_store() as (_, url, environment):
        observed = struck_again_and_again(context, kills, lost_after=lost_after, store_url=url, environment=environment)
    return f"on S3, disk lost after {lost_after or 'none'}: {observed}"
