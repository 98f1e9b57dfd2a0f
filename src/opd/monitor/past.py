"""Measures of a row, and earlier rows for detectors: first values of the run and of its part, the least value, the last rows."""

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from opd.runs.headline import ENTROPY_KEYS, LEAST, MOST, first_of

NUM_START = 3  # rows whose median is a run's start
NUM_WINDOW = 8  # rows that detectors pool, and among which a part's start is found
PART = "opd/stage"  # the metric whose change begins a part of the run with other answers
TURNS = "num_turns/mean"
SAME_TURNS = 1.25
"""Conversations are compared where their mean numbers of messages differ by less than about this factor."""

Row = Mapping[str, float]
Measure = Callable[[Row], float | None]


def finite(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a row's finite numbers, the only values by which detectors judge."""
    return {name: float(one) for name, one in row.items() if isinstance(one, int | float) and math.isfinite(one)}


def views(row: Row) -> list[Row]:
    """Return the row, then the row of its extreme ranks, if it has extremes: sums over ranks hide one rank."""
    extremes = [
        {name.removesuffix(suffix): value for name, value in row.items() if name.endswith(suffix)}
        for suffix in (LEAST, MOST)
    ]
    return [row, *({**row, **extreme} for extreme in extremes)] if any(extremes) else [row]


def entropy(row: Row) -> float | None:
    """Return the student's mean entropy, in nats a token."""
    return first_of(row, ENTROPY_KEYS)


def sampled_length(row: Row) -> float | None:
    """Return the mean number of the student's sampled tokens of an answer; None where tools' tokens are counted, too."""
    sampled, rows = row.get("opd/tool_mask/llm_tokens"), row.get("opd/valid_rows")
    if sampled is not None and rows:
        return sampled / rows
    return None if row.get("tool_mask/tool_tokens") else row.get("response_length/mean")


def turn_length(row: Row) -> float | None:
    """Return the mean number of sampled tokens of one turn; a student that learns to call tools takes more turns."""
    length, messages = sampled_length(row), row.get(TURNS)
    if "sft/num_rows" in row:  # the data set the length of given answers
        return None
    if length is None or not messages:
        return length
    return length / (messages / 2)  # a prompt or the tools' replies, then the student's turn


class Past:
    """The rows so far, the present one included."""

    def __init__(self) -> None:
        self._first: dict[str, list[float]] = {}
        self._least: dict[str, float] = {}
        self._window: deque[Row] = deque(maxlen=NUM_WINDOW)
        self._part: float | None = None
        self._first_of_part: list[Row] = []
        self._first_by_turns: dict[int, list[Row]] = {}
        self._turns = 0

    def add(self, row: Row) -> None:
        """Take note of a training step's row of finite numbers."""
        for name, value in row.items():
            if len(first := self._first.setdefault(name, [])) < NUM_START:
                first.append(value)
            self._least[name] = min(value, self._least.get(name, value))
        if (part := row.get(PART)) != self._part:  # a teacher's answers, or another loss
            self._window.clear()
            self._part, self._first_of_part, self._first_by_turns = part, [], {}
        self._window.append(row)
        turns = row.get(TURNS, 1.0)
        self._turns = round(math.log(turns, SAME_TURNS)) if turns > 0 else 0
        for rows in (self._first_of_part, self._first_by_turns.setdefault(self._turns, [])):
            if len(rows) < NUM_WINDOW:
                rows.append(row)

    def start(self, *names: str) -> float | None:
        """Return the median of the first values of the first known metric; None before there are enough."""
        return _median(next((self._first[name] for name in names if name in self._first), []))

    def start_of_part(self, measure: Measure) -> float | None:
        """Return the median of a measure over the first rows of the run's present part; None before there are enough."""
        return _median([value for row in self._first_of_part if (value := measure(row)) is not None])

    def start_at_turns(self, measure: Measure) -> float | None:
        """Return `start_of_part` over rows whose conversations had about as many turns as the present row's."""
        rows = self._first_by_turns.get(self._turns, [])
        return _median([value for row in rows if (value := measure(row)) is not None])

    def least(self, name: str) -> float | None:
        """Return the smallest value so far."""
        return self._least.get(name)

    def window(self, *names: str) -> list[tuple[float, ...]]:
        """Return values of the metrics in the stage's last rows with all of them, the oldest first."""
        return [tuple(row[name] for name in names) for row in self._window if row.keys() >= set(names)]


def _median(values: list[float]) -> float | None:
    return statistics.median(values[:NUM_START]) if len(values) >= NUM_START else None
