"""Updates without a finite loss and gradient: all ranks skip them, since the norm is nan; too many in a row end the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from opd.errors import Unfit
from opd.runs.headline import SKIPPED_KEYS, first_of

MAX_NAMED_ROWS = 8


class NonFinite(Unfit):
    """The end of a run that has stopped learning: the same weights and data would be skipped again."""


def finite_or_nan(loss: torch.Tensor, nonfinite: torch.Tensor) -> torch.Tensor:
    """Return the loss, or nan for it and every gradient if it or a token of `nonfinite` [N] bool is not finite."""
    is_finite = torch.isfinite(loss.detach()) & ~nonfinite.any().to(loss.device)
    return loss * torch.where(is_finite, 1.0, math.nan)


class SkippedUpdates:
    """The number of skipped updates in a row; `max_in_a_row` of them end the run, 0 never."""

    def __init__(self, max_in_a_row: int) -> None:
        self._max_in_a_row = max_in_a_row
        self._in_a_row = 0
        self._rows: dict[str, None] = {}

    def see(self, made: int, skipped_last: int, rows: Iterable[str] = ()) -> None:
        """Note a step: its updates, those skipped after the last good one, and the rows that caused it."""
        if skipped_last < made:
            self._in_a_row = 0
            self._rows.clear()
        self._in_a_row += skipped_last
        if skipped_last:
            self._rows.update(dict.fromkeys(rows))

    def check(self) -> None:
        """Raise `NonFinite` after too many skipped updates in a row."""
        if self._max_in_a_row and self._in_a_row >= self._max_in_a_row:
            raise NonFinite(
                f"{self._in_a_row} updates in a row had a loss or gradient that is not finite and were skipped "
                f"(trainer.max_skipped_updates={self._max_in_a_row}){_named(list(self._rows))}; lower "
                "actor.learning_rate, or see what is odd about model, teacher or these rows"
            )


def _named(rows: Sequence[str]) -> str:
    if not rows:
        return ": every loss was finite, so it is the gradient itself"
    more = f" and {len(rows) - MAX_NAMED_ROWS} more" if len(rows) > MAX_NAMED_ROWS else ""
    return f"; not finite was the loss of {', '.join(rows[:MAX_NAMED_ROWS])}{more}"


def summary(history: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return `updates` and `updates_skipped` of a run from its metrics; raise `NonFinite` if every update was skipped."""
    made = skipped = 0.0
    for row in history:
        made += row.get("opd/num_updates", row.get("actor/num_updates", 0))
        skipped += first_of(row, SKIPPED_KEYS) or 0
    if made and skipped >= made:
        raise NonFinite(
            f"all {made:.0f} updates of the run had a loss or gradient that is not finite: the student is what it was; "
            "lower actor.learning_rate, or see what is odd about model, teacher or data"
        )
    return {"updates": int(made), "updates_skipped": int(skipped)}
