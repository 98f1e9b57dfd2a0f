"""The monitor of a run that may have been resumed: what earlier attempts logged is gone through first."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from opd.errors import StoreError
from opd.monitor.faults import FAULTS, Fault
from opd.monitor.monitor import TRAINING, Monitor
from opd.runs.metrics import as_number, read_metrics
from opd.runs.run import Run

logger = logging.getLogger(__name__)


class FaultWatch:
    """Feeds a `Monitor` with each row that is logged; it never ends a run: where it fails, the attempt goes on without."""

    def __init__(self, run: Run | None, faults: Iterable[Fault] = FAULTS) -> None:
        self._run, self._faults = run, tuple(faults)
        self._monitor: Monitor | None = None
        self._has_failed = False

    def see(self, step: int, data: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
        """The row's own metrics and the lines of faults that begin or end with it."""
        if TRAINING not in data or self._has_failed:
            return {}, []
        try:
            if self._monitor is None:
                self._monitor = self._begun(step)
            return self._monitor.see(step, {name: as_number(value) for name, value in data.items()})
        except Exception:  # whatever it is, the training beside it is sound
            self._has_failed = True
            logger.warning("silent faults are not told from step %d on: their monitor failed", step, exc_info=True)
            return {}, []

    def _begun(self, step: int) -> Monitor:
        """A monitor that has seen the steps before this one."""
        monitor = Monitor(self._faults)
        if self._run is None or step <= 1:
            return monitor
        try:
            rows = read_metrics(self._run.stores).rows
        except StoreError as away:
            logger.warning("silent faults are told from step %d on, earlier rows cannot be read: %s", step, away)
            return monitor
        for row in rows:
            if row["step"] < step:
                monitor.see(row["step"], row)
        return monitor
