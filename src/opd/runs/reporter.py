"""Snapshots of a living run for a receiver, such as Prometheus metrics, from a thread of their own."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opd.runs.headline import (
    LOSS_KEYS,
    SKIPPED_KEYS,
    STEP_SECONDS_KEYS,
    THROUGHPUT_KEYS,
    Score,
    first_of,
    score,
    seconds_left,
)
from opd.runs.metrics import as_number
from opd.runs.progress import PROGRESS

logger = logging.getLogger(__name__)
INTERVAL_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of an attempt; None means not known."""

    attempt: int
    step: int
    total_steps: int | None
    eta_s: float | None
    score: Score | None
    loss: float | None
    step_s: float | None
    tokens_per_s: float | None
    num_skipped: int
    """Updates that this attempt skipped, since loss or gradient was not finite."""
    progress_at_s: float | None
    """The driver's last progress, Unix seconds."""
    limit_s: float | None
    """Without progress for this long the attempt is ended; None while it waits for others."""


class Reporter:
    """The last metrics of the training thread."""

    def __init__(self, *, attempt: int):
        self.total_steps: int | None = None
        self._attempt = attempt
        self._step, self._num_skipped = 0, 0
        self._latest: dict[str, float] = {}

    @contextlib.contextmanager
    def telling(self, tell: Callable[[Snapshot], None], *, interval_s: float = INTERVAL_S) -> Iterator[None]:
        """Call `tell` every few seconds while the block runs, and once at its end; its errors end nothing."""
        over = threading.Event()

        def call() -> None:
            has_failed = False
            while not has_failed:
                is_last = over.wait(interval_s)
                try:
                    tell(self.snapshot())
                except Exception as error:  # noqa: BLE001 - the run does not depend on a receiver
                    has_failed = True
                    logger.warning("the run continues without %s: %s", tell, error)
                if is_last:
                    return

        thread = threading.Thread(target=call, name="opd-reporter", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def go_on_from(self, step: int) -> None:
        """Begin after this step of an earlier attempt."""
        self._step = max(step, self._step)

    def see(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take note of a row of metrics."""
        values = {name: as_number(value) for name, value in metrics.items()}
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}  # finite ones
        self._step = max(step, self._step)
        self._num_skipped += int(first_of(numbers, SKIPPED_KEYS) or 0)
        # One new mapping: `snapshot` reads it on another thread. A value that is not finite hides older values, too.
        self._latest = {
            name: value for name, value in (self._latest | numbers).items() if name in numbers or name not in values
        }

    def snapshot(self) -> Snapshot:
        """Return the present state of the attempt."""
        standing, latest = PROGRESS.read(), self._latest
        step_s = first_of(latest, STEP_SECONDS_KEYS)
        return Snapshot(
            attempt=self._attempt,
            step=self._step,
            total_steps=self.total_steps,
            eta_s=seconds_left(self._step, self.total_steps, step_s),
            score=score(latest),
            loss=first_of(latest, LOSS_KEYS),
            step_s=step_s,
            tokens_per_s=first_of(latest, THROUGHPUT_KEYS),
            num_skipped=self._num_skipped,
            progress_at_s=time.time() - standing.silent_s() if standing else None,
            limit_s=standing.limit_s if standing else None,
        )
