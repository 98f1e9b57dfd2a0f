"""Updates without a finite loss and gradient: skipped by all ranks together, counted, and the end of a run if nothing else comes.

A rank whose loss is not finite makes its gradient nan, so the norm over all ranks is nan and verl's engine leaves the
weights alone on every one of them. What is counted here is what verl returned: one norm an update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from opd.errors import Unfit
from opd.runs.headline import SKIPPED_KEYS, first_of

MAX_NAMED_ROWS = 8


class NonFinite(Unfit):
    """Updates were skipped for so long that the run has stopped learning; the same weights and data would do it again."""


def finite_or_nan(loss: torch.Tensor, nonfinite: torch.Tensor) -> torch.Tensor:
    """The loss, or nan for it and for every gradient, if it or any token's divergence is not finite (no wait for a device).

    Args:
        loss: a scalar with a graph.
        nonfinite: [N] bool, tokens whose divergence is not finite.
    """
    is_finite = torch.isfinite(loss.detach()) & ~nonfinite.any().to(loss.device)
    return loss * torch.where(is_finite, 1.0, math.nan)


class SkippedUpdates:
    """The run of skipped updates that is going on; `max_in_a_row` of them end the run, 0 lets it go on."""

    def __init__(self, max_in_a_row: int) -> None:
        self._max_in_a_row = max_in_a_row
        self._in_a_row = 0
        self._rows: dict[str, None] = {}

    def see(self, made: int, skipped_last: int, rows: Iterable[str] = ()) -> None:
        """Take note of a step: its updates, how many of them were skipped after the last good one, and the rows that made it so."""
        if skipped_last < made:
            self._in_a_row = 0
            self._rows.clear()
        self._in_a_row += skipped_last
        if skipped_last:
            self._rows.update(dict.fromkeys(rows))

    def check(self) -> None:
        """After the step was written.

        Raises:
            NonFinite: so many updates in a row were skipped; names the rows of data that made them.
        """
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
    """`updates` and `updates_skipped` of a run, from its metrics over all attempts.

    Raises:
        NonFinite: there were updates, and every one was skipped.
    """
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
