"""The thread that renews an attempt's lease and ends the attempt when it cannot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from opd.errors import LeaseLost, Overtaken, StoreUnavailable

logger = logging.getLogger(__name__)

OUTAGE_S = 1800.0
"""An unreachable store stops nobody for so long: no other attempt can claim the run there, unless only this node is cut off."""


class Watch:
    """Calls `beat` every `interval_s` and remembers when another attempt has overtaken this one.

    The attempt must end if the lease was not renewed for `term_s`, or for `outage_s` while the store is unreachable.

    Args:
        end: asks the attempt to save and end; None lets `check` raise at once.
    """

    def __init__(
        self,
        *,
        beat: Callable[[], None],
        interval_s: float,
        term_s: float = float("inf"),
        outage_s: float = OUTAGE_S,
        end: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.beat = beat
        self.interval_s = interval_s
        self.term_s, self.outage_s = term_s, max(outage_s, term_s)
        self.lost: LeaseLost | None = None
        """The reason why the attempt must end, once its lease is too old."""
        self._end = end
        self._clock = clock
        self._overtaken: Overtaken | None = None
        self._trouble: Exception | None = None
        self._renewed_s = self._excused_s = clock()
        self._has_warned = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; the lease counts from now."""
        self._renewed_s = self._excused_s = self._clock()
        self._thread = threading.Thread(target=self._run, name="opd-run-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise what stops the attempt at once.

        Raises:
            Overtaken: a beat found that another attempt owns the run.
            LeaseLost: the lease is too old; with `end`, only where the attempt has gone on for another step after it was asked.
        """
        was_asked = self.lost is not None
        if self._overtaken is None and not was_asked and self._clock() - self._excused_s > self.term_s:
            self._beat()  # the thread may have stood still with the whole process
        if self._overtaken is not None:
            raise Overtaken(str(self._overtaken))
        if self.lost is not None and ((was_asked and self._has_warned) or self._end is None):
            raise LeaseLost(str(self.lost))
        self._has_warned = self.lost is not None

    def _run(self) -> None:
        while self._overtaken is None and not self._stop.wait(self.interval_s):
            self._beat()

    def _beat(self) -> None:
        """Beat once; ask the attempt to end if the lease is too old after that."""
        trouble: Exception | None = None
        try:
            self.beat()
        except Overtaken as error:
            self._overtaken = error
            logger.error("%s", error)
        except Exception as error:  # noqa: BLE001 - this thread keeps the run: it must survive any answer of a store
            trouble = error
            if type(error) is not type(self._trouble):
                logger.warning("lease not renewed, another attempt may take over when it runs out: %r", error)
        now_s = self._clock()
        if trouble is None:
            self._renewed_s = now_s
        if trouble is None or isinstance(trouble, StoreUnavailable):
            self._excused_s = now_s
        self._trouble = trouble
        if trouble is not None and self.lost is None:
            self._end_if_lost(now_s, trouble)

    def _end_if_lost(self, now_s: float, trouble: Exception) -> None:
        age_s = now_s - self._renewed_s
        if now_s - self._excused_s <= self.term_s and age_s <= self.outage_s:
            return
        allowed_s = self.outage_s if isinstance(trouble, StoreUnavailable) else self.term_s
        self.lost = LeaseLost(
            f"the lease was last renewed {age_s:.0f} s ago and {allowed_s:g} s are allowed, so another attempt may own the "
            f"run; the last answer was {trouble!r}. This attempt saves on its own disk and ends. Fix: give it access to the "
            "store, then start it again"
        )
        logger.error("%s", self.lost)
        if self._end is not None:
            self._end()
