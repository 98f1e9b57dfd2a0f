"""Snapshots of a living run for others: a thread gives one to each receiver every few seconds.

No receiver can end the run or slow it: a failure makes one warning, and the next snapshot follows.
"""

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
# The end of a run waits so long for a receiver.
END_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of an attempt; None means not known."""

    attempt: int
    step: int
    total_steps: int | None = None
    eta_s: float | None = None
    score: Score | None = None
    loss: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    num_skipped: int = 0
    """Updates that this attempt skipped, since loss or gradient was not finite."""
    progress_at_s: float | None = None
    """The driver's last progress, Unix seconds."""
    limit_s: float | None = None
    """Without progress for this long the attempt is ended; None while it waits for others."""


Tell = Callable[[Snapshot], None]


class Reporter:
    """The last metrics of the training thread, and the receivers of snapshots."""

    def __init__(self, *, attempt: int, interval_s: float = INTERVAL_S):
        self.total_steps: int | None = None
        self._attempt = attempt
        self._interval_s = interval_s
        self._step, self._num_skipped = 0, 0
        self._latest: dict[str, float] = {}
        self._receivers: list[Tell] = []
        self._warned: set[Tell] = set()
        self._telling = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, tell: Tell) -> None:
        """Give `tell` a snapshot every few seconds, on a thread of the reporter's own."""
        with self._telling:
            self._receivers.append(tell)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="opd-reporter", daemon=True)
            self._thread.start()

    @contextlib.contextmanager
    def telling(self, tell: Tell) -> Iterator[None]:
        """Add a receiver while the block runs; no call of it is left after the block."""
        self.add(tell)
        try:
            yield
        finally:
            with self._telling:
                with contextlib.suppress(Exception):  # the state at the end, which is up to 5 s newer
                    tell(self.snapshot())
                self._receivers.remove(tell)

    def go_on_from(self, step: int) -> None:
        """Begin after this step of an earlier attempt."""
        self._step = max(step, self._step)

    def see(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take note of a row of metrics."""
        if not self._receivers:
            return
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
        standing, latest = PROGRESS.read(), self._latest.copy()
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

    def close(self) -> None:
        """Stop the thread, and wait a few seconds for a receiver."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(END_WAIT_S)

    def _run(self) -> None:
        while not self._over.is_set():
            self._tell(self.snapshot())
            self._over.wait(self._interval_s)

    def _tell(self, snapshot: Snapshot) -> None:
        with self._telling:
            for tell in self._receivers:
                try:
                    tell(snapshot)
                except Exception as error:  # noqa: BLE001 - the run does not depend on a receiver
                    if tell not in self._warned:
                        logger.warning("the run continues, but %s does not take its state: %s", tell, error)
                    self._warned.add(tell)
                else:
                    self._warned.discard(tell)
