"""The monitor of a run: it judges each row of metrics, and adds to the row which faults begin and end."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from opd.monitor.faults import BY_NAME, FAULTS, Fault
from opd.monitor.past import Past, finite, views
from opd.runs.metrics import as_number, read_metrics
from opd.store.base import Store

logger = logging.getLogger(__name__)

PREFIX = "fault/"
"""Metric `fault/NAME`: the step since which the run has the fault, 0 in the row with which the fault is gone."""
TRAINING = "training/global_step"
ENDS_AFTER = 3  # rows in a row without a fault before the fault counts as gone: one lucky step does not end it


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault of a run: the first step that showed it, and the step with which it was gone, if it was."""

    name: str
    what: str
    look: str
    since: int
    until: int | None = None

    @classmethod
    def of(cls, name: str, *, since: int, until: int | None = None) -> "Finding":
        """Make the finding of a name in a row; an unknown name has no words here."""
        fault = BY_NAME.get(name)
        what, look = (fault.what, fault.look) if fault else (name, "the version that wrote the run")
        return cls(name=name, what=what, look=look, since=since, until=until)

    def __str__(self) -> str:
        until = "" if self.until is None else f" until step {self.until}"
        return f"since step {self.since}{until}: {self.what} ({self.name}); look at {self.look}"


@dataclass(kw_only=True)
class _State:
    since: int | None = None
    num_shown: int = 0
    num_not_shown: int = 0
    is_named: bool = False


class Monitor:
    """The state of each fault after the rows so far; it never ends a run: where it fails, the attempt continues without it.

    Args:
        stores: the run's, whose earlier rows the first row follows.
    """

    def __init__(self, stores: Sequence[Store] = (), faults: Iterable[Fault] = FAULTS) -> None:
        self._stores = stores
        self._states = {fault: _State() for fault in faults}
        self._pasts = [Past(), Past(), Past()]  # of the whole row, and of its extremes over ranks
        self._has_begun = self._has_failed = False

    def see(self, step: int, row: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
        """Take note of a row, in the order of the steps.

        Returns:
            Metrics for the row (`PREFIX`); a line for each fault that begins or ends with it.
        """
        try:
            if TRAINING in row and not self._has_failed:
                return self._judge(step, {name: as_number(value) for name, value in row.items()})
        except Exception:  # the training itself is sound
            self._has_failed = True
            logger.warning("the monitor of silent faults failed: it reports none from step %d on", step, exc_info=True)
        return {}, []

    def _judge(self, step: int, row: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
        if not self._has_begun:
            self._has_begun = True
            for earlier in read_metrics(self._stores) if step > 1 else ():
                if earlier["step"] < step and TRAINING in earlier:
                    self._judge(earlier["step"], earlier)
        metrics: dict[str, float] = {}
        lines: list[str] = []
        numbers = finite(row)
        seen = list(zip(views(numbers), self._pasts, strict=False))
        for view, past in seen:
            past.add(view)
        for fault, state in self._states.items():
            whole, *of_ranks = [fault.judge(view, past) for view, past in seen]
            on_a_rank = next((f"on a rank: {verdict}" for verdict in of_ranks if verdict), None)
            if line := _note(fault, state, step, whole or on_a_rank or whole):
                lines.append(line)
            if state.is_named:
                metrics[f"{PREFIX}{fault.name}"] = float(state.since or 0)
                if state.since is None:
                    self._states[fault] = _State()
        return metrics, lines


def _note(fault: Fault, state: _State, step: int, verdict: str | None) -> str:
    """Take note of a verdict; return the line of a fault that begins or ends with it. An ended fault has no `since`."""
    if verdict:
        state.since = step if state.since is None else state.since
        state.num_shown, state.num_not_shown = state.num_shown + 1, 0
        if not state.is_named and state.num_shown >= fault.begins_after:
            state.is_named = True
            return f"{Finding.of(fault.name, since=state.since)} [{verdict}]"
    elif verdict == "":
        state.num_shown, state.num_not_shown = 0, state.num_not_shown + 1
        if not state.is_named:
            state.since = None
        elif state.num_not_shown >= ENDS_AFTER:
            began, state.since = state.since, None
            return f"gone with step {step}: {fault.what} ({fault.name}), which was since step {began}"
    return ""


def standing(latest: Mapping[str, float]) -> list[Finding]:
    """Return the present faults of a run by the last value of each of its metrics, the oldest first."""
    return [finding for finding in findings([{"step": 0, **latest}]) if finding.until is None]


def findings(rows: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Return all faults of a run by its rows of metrics in the order of the steps, the oldest first."""
    found: dict[tuple[str, int], int | None] = {}
    open_since: dict[str, int] = {}
    for row in rows:
        for key, value in row.items():
            if not key.startswith(PREFIX) or not isinstance(value, int | float):
                continue
            name = key.removeprefix(PREFIX)
            if 0 < value < math.inf:
                open_since[name] = round(value)
                found[name, open_since[name]] = None
            elif name in open_since:
                found[name, open_since.pop(name)] = int(row["step"])
    ordered = sorted(found.items(), key=lambda item: (item[0][1], item[0][0]))
    return [Finding.of(name, since=since, until=until) for (name, since), until in ordered]


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the part of `result.json`: `faults`, a list of findings."""
    return {"faults": [asdict(finding) for finding in findings(rows)]}
