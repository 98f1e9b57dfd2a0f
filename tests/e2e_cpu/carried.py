"""A run with rollout.schedule carry, and what its checkpoints say of its rows."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from opd.rollout.carry import CarriedRow

NUM_STEPS, NUM_ROWS = 8, 16
"""Of the run, and of each step."""
# A hot student writes answers of 2 to 32 tokens, so that some continue over several updates.
SETS = ("rollout.schedule=carry", "rollout.in_flight=24", "rollout.temperature=1.7", "data.max_response_length=32")


def rows_of(state: Mapping[str, Any]) -> dict[int, CarriedRow]:
    """Return the rows on their way, by number."""
    return {row["number"]: CarriedRow(**row) for name in ("running", "waiting", "complete") for row in state[name]}


def _versions(row: CarriedRow) -> list[int]:
    """Return for each token the version of the weights that made it."""
    return [version for version, num in row.pieces for _ in range(num)]


def must_follow(states: Mapping[int, Mapping[str, Any]], *, rows_per_step: int) -> None:
    """Check that between checkpoints no row is lost or trained on twice, and that new tokens have a version in between.

    Args:
        states: what carried.json holds, by step.
    """
    for earlier, later in pairwise(sorted(states)):
        before, after = rows_of(states[earlier]), rows_of(states[later])
        begun = set(range(states[earlier]["num_begun"], states[later]["num_begun"]))
        assert after.keys() <= before.keys() | begun
        assert len((before.keys() | begun) - after.keys()) == rows_per_step * (later - earlier), (
            "what has left was trained on"
        )
        for number, now in after.items():
            then = before.get(number, CarriedRow(number=number, index=now.index, sample=now.sample, limit=now.limit))
            assert now.tokens[: len(then.tokens)] == then.tokens, "its prefix is kept"
            assert _versions(now)[: len(then.tokens)] == _versions(then)
            assert all(earlier <= version < later for version in _versions(now)[len(then.tokens) :])
