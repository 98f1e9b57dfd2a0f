"""Ends of a run by what its steps show: no finite loss and gradient, or mass on tokens that only one of two models has."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opd.errors import Unfit
from opd.runs.headline import SKIPPED_KEYS, first_of

MAX_NAMED_ROWS = 8


class NonFinite(Unfit):
    """The end of a run that has stopped learning: the same weights and data would be skipped again."""


class SkippedUpdates:
    """The number of skipped updates in a row; `max_in_a_row` of them end the run, 0 never."""

    def __init__(self, max_in_a_row: int) -> None:
        self._max_in_a_row, self._in_a_row = max_in_a_row, 0
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
                f"(trainer.max_skipped_updates={self._max_in_a_row}){_named(list(self._rows))}. Lower "
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
            f"all {made:.0f} updates of the run had a loss or gradient that is not finite, so the student is unchanged. "
            "Lower actor.learning_rate, or see what is odd about model, teacher or data"
        )
    return {"updates": int(made), "updates_skipped": int(skipped)}


def check_unshared(metrics: Mapping[str, float], *, limit: float) -> None:
    """Refuse a step whose mean mass of unshared tokens is above `opd.max_unshared_mass`, or that they leave without a trained token."""
    num_tokens, left_out = metrics.get("opd/num_tokens", 0.0), metrics.get("opd/unshared_tokens", 0.0)
    if left_out and not num_tokens:
        raise Unfit(
            f"all {left_out:.0f} response tokens of the step come at or after a token that the teacher lacks, so nothing can "
            "be trained. Look for such tokens in the prompts and at the start of the "
            "student's answers, or choose a teacher with the student's tokenizer"
        )
    for side, other in (("teacher", "student"), ("student", "teacher")):
        mass = metrics.get(f"opd/unshared_mass_{side}", 0.0)
        if mass > limit:
            raise Unfit(
                f"opd.max_unshared_mass={limit:g}: the {side} puts {mass:.3g} of its probability (mean over "
                f"{num_tokens:.0f} tokens) on tokens that the {other} lacks. The divergence over the shared tokens would "
                f"teach something else than it says. Choose a {other} with the {side}'s tokenizer, settings in which it "
                "does not use them (data.enable_thinking), or raise opd.max_unshared_mass"
            )
