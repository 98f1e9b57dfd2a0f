"""The thread that renews an attempt's lease and notices when another claim has taken the run over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from opd.errors import LeaseLost, Overtaken, StoreError

logger = logging.getLogger(__name__)


class Watch:
    """Calls `beat` every `interval_s`, whatever it raises; being overtaken is remembered.

    A store that is away is warned of and stops nothing: nobody else can claim the run there either. A lease that is older
    than `term_s` for any other reason does: answers that make no sense, or a thread that hangs.
    """

    def __init__(
        self,
        *,
        beat: Callable[[], None],
        interval_s: float,
        term_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ):
        self.beat = beat
        self.interval_s = interval_s
        self.term_s = term_s
        self._clock = clock
        self._overtaken: Overtaken | None = None
        self._trouble: Exception | None = None
        self._excused_s = clock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._excused_s = self._clock()
        self._thread = threading.Thread(target=self._run, name="opd-run-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raises what stops the attempt.

        Raises:
            Overtaken: a beat found that the run is another's.
            LeaseLost: the lease is older than its term, and a beat from here did not renew it.
        """
        is_due = self._clock() - self._excused_s > self.term_s
        if self._overtaken is None and is_due:
            self._beat()
        if self._overtaken is not None:
            raise Overtaken(str(self._overtaken))
        if is_due and (age_s := self._clock() - self._excused_s) > self.term_s:
            raise LeaseLost(
                f"the lease was last renewed {age_s:.0f} s ago and its term is {self.term_s:g} s, so another attempt may own "
                f"the run: stopping without another write; the last answer was {self._trouble!r}"
            )

    def _run(self) -> None:
        while self._overtaken is None and not self._stop.wait(self.interval_s):
            self._beat()

    def _beat(self) -> None:
        trouble: Exception | None = None
        try:
            self.beat()
        except Overtaken as error:
            self._overtaken = error
            logger.error("%s", error)
        except Exception as error:  # noqa: BLE001 - this thread keeps the run: it must outlive whatever a store answers
            trouble = error
            if type(error) is not type(self._trouble):
                logger.warning("lease not renewed, another attempt may take over when it runs out: %r", error)
        if trouble is None or isinstance(trouble, StoreError):
            self._excused_s = self._clock()
        self._trouble = trouble
