"""Rows that go on over the steps of a simulated run: the real schedule and file, with rows whose lengths follow from their numbers.

What a step trains on and leaves on its way is the same in every attempt, as with fixed seeds.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from opd.rollout import carry as carried_file
from opd.rollout.carry import Carry, Growth, Slot

# After each of the first steps one row waits for a later one, and another is on its way.
ROWS, IN_FLIGHT, MAX_AGE = 2, 4, 8
LENGTHS = (7, 2, 2, 2)
LONGEST = 32


class Rows:
    """Those of one attempt.

    Args:
        position: place in the data, which verl's own file of a checkpoint has.
    """

    def __init__(self, position: int = 0):
        self.position, self._version = position, 0
        self.carry = Carry(rows=ROWS, in_flight=IN_FLIGHT, max_age=MAX_AGE, longest=LONGEST)

    def train(self, step: int) -> int:
        """What tells the rows that the step trains on, with their tokens and versions, from others; as a metric."""
        self._version = step - 1
        update = self.carry.next_update(version=step - 1, draw=self._draw, advance=self._advance)
        rows = json.dumps([vars(row) for row in update.rows])
        return int.from_bytes(hashlib.blake2b(rows.encode(), digest_size=4).digest(), "big")

    def state(self) -> dict[str, Any]:
        """What is on its way, as a checkpoint holds it."""
        return json.loads(json.dumps(self.carry.state()))

    def save(self, folder: Path) -> None:
        carried_file.save(self.carry, folder)

    @staticmethod
    def of(folder: Path, step: int) -> Rows:
        """Go on from a step's checkpoint."""
        rows = Rows(_uninterrupted(step)[1])
        carried_file.load(rows.carry, folder)
        return rows

    def _draw(self) -> list[tuple[int, int, int]]:
        self.position += ROWS
        return [(index, 0, LONGEST) for index in range(self.position - ROWS, self.position)]

    def _advance(self, slots: list[Slot], num_tokens: int) -> list[list[Growth]]:
        return [self._grown(slot, num_tokens) for slot in slots]

    def _grown(self, slot: Slot, num_left: int) -> list[Growth]:
        """As `opd.rollout.pieces.advance`, which waits for a server."""
        grown = []
        for row in slot:
            there, length = len(row.tokens), LENGTHS[row.number % len(LENGTHS)]
            num = min(num_left, length - there)
            if not num:
                break
            tokens = [100 * row.number + place for place in range(there, there + num)]
            grown.append(Growth(tokens=tokens, version=self._version, is_complete=there + num == length))
            num_left -= num
        return grown


def trained_at(step: int) -> int:
    """`Rows.train` of the step."""
    return _uninterrupted(step)[0]


def left_after(step: int) -> dict[str, Any]:
    """What is on its way after the step."""
    return _uninterrupted(step)[2]


_WHOLE = Rows()
_STEPS: list[tuple[int, int, dict[str, Any]]] = []


def _uninterrupted(step: int) -> tuple[int, int, dict[str, Any]]:
    """What a step of a run that nothing interrupts trains on, its place in the data, and what it leaves on its way."""
    while len(_STEPS) < step:
        trained = _WHOLE.train(len(_STEPS) + 1)
        _STEPS.append((trained, _WHOLE.position, _WHOLE.state()))
    return _STEPS[step - 1]
