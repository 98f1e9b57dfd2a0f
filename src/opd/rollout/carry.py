"""The schedule `carry`: rows that are generated in rounds of tokens, and the rows of an update. Pure bookkeeping, no server.

A round gives each running row up to `round_tokens` tokens. The next prompt follows a row that ends within it at once, with the
rest of the round. Between two rounds nothing is in flight. The next rows follow from the lengths alone, never from the order of
the answers. So two runs whose rows are equal make equal updates, on any server.

An update takes place when enough rows are complete. Unfinished rows keep their tokens and continue under the new weights.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from opd.errors import CheckpointError

CHECKPOINT_FILE = "carried.json"
"""File of a step's checkpoint that holds the rows which are on their way."""

ROUNDS_OF_LONGEST = 16
"""Rounds that the longest row takes. Shorter rounds follow the lengths more closely, and each costs its requests once more."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The tokens of one row in a round."""

    tokens: list[int]
    version: int  # of the weights that made them
    is_complete: bool
    prompt_ids: list[int] = field(default_factory=list)
    num_read: int = 0
    """Tokens before them that the server read because its cache did not have them."""
    error: str = ""
    """The reason why the row is given up; empty if it is not."""


@dataclass(kw_only=True)
class CarriedRow:
    """One answer on its way."""

    number: int  # of all rows that the run began, from 0
    index: int  # row of the data set
    sample: int  # number of the prompt's answer
    limit: int  # most tokens
    prompt_ids: list[int] = field(default_factory=list)  # none until the first piece
    tokens: list[int] = field(default_factory=list)
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """(version of the weights, tokens that they made), in the order of the tokens."""
    is_complete: bool = False
    ended_at: int = 0
    """Virtual time, in tokens, of the last token of a complete row."""

    @property
    def place(self) -> tuple[int, int]:
        """Prompt and sample; an update holds each pair at most once."""
        return self.index, self.sample

    def grow(self, growth: Growth, now: int) -> None:
        """Take what a round gave it, up to virtual time `now`."""
        self.prompt_ids = growth.prompt_ids
        self.tokens.extend(growth.tokens)
        if self.pieces and self.pieces[-1][0] == growth.version:
            self.pieces[-1] = (growth.version, self.pieces[-1][1] + len(growth.tokens))
        elif growth.tokens:
            self.pieces.append((growth.version, len(growth.tokens)))
        self.is_complete, self.ended_at = growth.is_complete, now


Slot = list[CarriedRow]
"""A row and those that follow it in its round, one after another."""
Advance = Callable[[list[Slot], int], list[list[Growth]]]
"""(slots, tokens of a round) -> for each slot what its rows got, as far as the round went."""
Draw = Callable[[], Iterable[tuple[int, int, int]]]
"""-> (index, sample, limit) of the next prompts' answers in the order of the data; at least one."""


@dataclass(kw_only=True)
class Update:
    """The rows of an update, and counts of what it took to get them."""

    rows: list[CarriedRow] = field(default_factory=list)
    num_rounds: int = 0
    num_waited: int = 0  # of these, rounds of rows alone that the update must hold by `max_age`
    num_thrown_away: int = 0  # tokens that no update will see
    num_read: int = 0  # tokens of prompts and prefixes that the server read
    num_filled: int = 0  # rows that the warm fill completed and threw away
    num_failed: int = 0  # rows that were given up
    first_error: str = ""

    @property
    def num_ended(self) -> int:
        """Rows that ended in it: trained on, thrown away or given up."""
        return len(self.rows) + self.num_filled + self.num_failed

    def metrics(self, version: int) -> dict[str, float]:
        """Return the metrics of an update of weights of that version.

        The age of a token is the number of versions between the weights that made it and those that train on it.
        """
        ages = [(version - made_by, num) for row in self.rows for made_by, num in row.pieces]
        return {
            "rollout/age_mean": sum(age * num for age, num in ages) / sum(num for _, num in ages),
            "rollout/age_max": float(max(age for age, _ in ages)),
            "rollout/carried_share": sum(row.pieces[0][0] < version for row in self.rows) / len(self.rows),
            "rollout/tokens_thrown_away": float(self.num_thrown_away),
            "rollout/tokens_read": float(self.num_read),
            "rollout/rounds": float(self.num_rounds),
            "rollout/rounds_waited": float(self.num_waited),
        }


class Carry:
    """The rows between the data and an update.

    Before the first update the warm fill brings the running rows to the middle of a long run. Rows follow one another until each
    of the first ones has ended. The fill drops rows that were completed until then, and asks their prompts again. Without this
    the first updates would train on short answers alone.

    Args:
        rows: of an update.
        in_flight: rows that are generated at once.
        max_age: how many versions the weights that train may be ahead of those that made a token. It can be kept if
            `in_flight + max(in_flight - rows, rows) <= max_age * rows`.
        longest: tokens that a row may have at most.
    """

    def __init__(self, *, rows: int, in_flight: int, max_age: int, longest: int) -> None:
        self.rows, self.in_flight, self.max_age = rows, in_flight, max_age
        self.round_tokens = max(1, longest // ROUNDS_OF_LONGEST)
        self.running: list[CarriedRow] = []
        self.waiting: list[CarriedRow] = []
        """Drawn, and without a token."""
        self.complete: list[CarriedRow] = []
        """For a later update."""
        self._clock = 0
        self._num_begun = 0
        self._is_cold = True
        self._made = Update()

    def next_update(self, *, version: int, draw: Draw, advance: Advance) -> Update:
        """Generate until an update is full.

        Args:
            version: of the weights that generate, and that the update trains.

        Raises:
            RuntimeError: all rows of a round failed.
        """
        self._made = Update()
        if self._is_cold:
            self._fill_warm(draw, advance)
        while True:
            due = self._due(version)
            unfinished = [row for row in due if not row.is_complete]
            if len(self.complete) < self.rows:
                self._advance(self._slots(draw), advance)
            elif unfinished:  # the others hold: they would only add to what waits for an update
                self._made.num_waited += 1
                self._advance([[row] for row in unfinished], advance)
            else:
                break
        numbers = {row.number for row in due}
        first = sorted(self.complete, key=lambda row: (row.number not in numbers, row.ended_at, row.number))
        self._made.rows, self.complete = first[: self.rows], first[self.rows :]
        return self._made

    def state(self) -> dict[str, Any]:
        """Return the schedule as plain JSON values, for `restore`; the rows' own lists, for the caller not to change."""
        groups = {
            name: [vars(row).copy() for row in getattr(self, name)] for name in ("running", "waiting", "complete")
        }
        return {"clock": self._clock, "num_begun": self._num_begun, "is_cold": self._is_cold, **groups}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where another one was.

        Raises:
            KeyError, TypeError, ValueError: it is no `state`.
        """
        for name in ("running", "waiting", "complete"):
            rows = [CarriedRow(**fields) for fields in state[name]]
            for row in rows:
                row.pieces = [(int(version), int(num)) for version, num in row.pieces]
            setattr(self, name, rows)
        self._clock, self._num_begun, self._is_cold = state["clock"], state["num_begun"], state["is_cold"]

    def save(self, folder: Path) -> None:
        """Save with a step's checkpoint."""
        (folder / CHECKPOINT_FILE).write_text(json.dumps(self.state()))

    def load(self, folder: Path) -> None:
        """Restore what `save` saved.

        Raises:
            CheckpointError: the file is missing, or holds something else.
            OSError: the disk fails now, which says nothing about the checkpoint.
        """
        path = folder / CHECKPOINT_FILE
        try:
            self.restore(json.loads(path.read_text()))
        except FileNotFoundError as error:
            raise CheckpointError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise CheckpointError(
                f"{path} is no file of rollout.schedule carry ({why}); resume from an earlier checkpoint"
            ) from error

    def _fill_warm(self, draw: Draw, advance: Advance) -> None:
        slots = self._slots(draw)
        first = {slot[0].number for slot in slots}
        thrown: list[CarriedRow] = []
        while True:
            self._advance(slots, advance)
            thrown += self.complete
            self.complete = []
            if not any(row.number in first for row in self.running):
                break
            slots = self._slots(draw)
        self._made.num_thrown_away += sum(len(row.tokens) for row in thrown)
        self._made.num_filled = len(thrown)
        thrown.sort(key=lambda row: row.number)
        self.waiting[:0] = self._begun((row.index, row.sample, row.limit) for row in thrown)
        self._is_cold = False

    def _due(self, version: int) -> list[CarriedRow]:
        """Return the rows that an update must hold so that no token gets too old: earliest deadline first.

        Of the begun rows, the oldest first, row i is one of i that must be trained on before it is older than `max_age`
        versions. Later updates until then take `rows` each.
        """
        begun = sorted(
            (row for row in [*self.running, *self.complete] if row.pieces),
            key=lambda row: (row.pieces[0][0], row.number),
        )
        must = 0
        for num, row in enumerate(begun, start=1):
            must = max(must, num - self.rows * max(0, row.pieces[0][0] + self.max_age - version))
        return begun[: min(must, self.rows)]

    def _slots(self, draw: Draw) -> list[Slot]:
        """Return every running row, those that start now too, and a follower for each while the number of rows stays bounded."""
        room = self.in_flight + max(self.in_flight, 2 * self.rows) - len(self.complete)
        self.running += self._next(min(self.in_flight, room) - len(self.running), draw)
        followers = self._next(min(len(self.running), room - len(self.running)), draw)
        slots = [[row] for row in self.running]
        for slot, row in zip(slots, followers, strict=False):
            slot.append(row)
        return slots

    def _next(self, num: int, draw: Draw) -> list[CarriedRow]:
        """Return up to so many of the waiting rows; a row whose place is taken waits for the update of the other one."""
        busy = {row.place for row in [*self.running, *self.complete]}
        taken: list[CarriedRow] = []
        held: list[CarriedRow] = []
        while len(taken) < num:
            if not self.waiting:
                if len(held) >= self.in_flight and (self.running or taken):
                    break  # the data have no more places
                self.waiting = self._begun(draw())
            row = self.waiting.pop(0)
            if row.place in busy:
                held.append(row)
            else:
                busy.add(row.place)
                taken.append(row)
        self.waiting[:0] = held
        return taken

    def _begun(self, drawn: Iterable[tuple[int, int, int]]) -> list[CarriedRow]:
        rows = []
        for index, sample, limit in drawn:
            rows.append(CarriedRow(number=self._num_begun, index=index, sample=sample, limit=limit))
            self._num_begun += 1
        return rows

    def _advance(self, slots: list[Slot], advance: Advance) -> None:
        """Make a round of these slots; other running rows hold still."""
        made, still = self._made, {row.number for slot in slots for row in slot}
        running = [row for row in self.running if row.number not in still]
        unused: list[CarriedRow] = []
        num_left = 0
        for slot, grown in zip(slots, advance(slots, self.round_tokens), strict=True):
            spent = 0
            for row, growth in zip_longest(slot, grown):
                if growth is None:
                    unused.append(row)
                    continue
                spent += len(growth.tokens)
                made.num_read += growth.num_read
                row.grow(growth, self._clock + spent)
                if growth.error:
                    made.num_failed += 1
                    made.num_thrown_away += len(row.tokens)
                    made.first_error = made.first_error or growth.error
                    continue
                num_left += 1
                (self.complete if row.is_complete else running).append(row)
        if not num_left and len(self.complete) < self.rows:  # else only rows that an update waited for were asked for
            raise RuntimeError(f"all rows of a round failed; the first: {made.first_error}")
        self.running = sorted(running, key=lambda row: row.number)
        self.waiting[:0] = sorted(unused, key=lambda row: row.number)
        self._clock += self.round_tokens
        made.num_rounds += 1
