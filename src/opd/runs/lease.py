"""The thread that renews an attempt's lease and notices when another claim has taken the run over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from opd.runs.errors import Overtaken, StoreError

logger = logging.getLogger(__name__)


class Watch:
    """Calls `beat` every `interval_s`; a store that is away is warned of once, being overtaken is remembered."""

    def __init__(self, *, beat: Callable[[], None], interval_s: float):
        self.beat = beat
        self.interval_s = interval_s
        self._overtaken: Overtaken | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="opd-run-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def raise_if_overtaken(self) -> None:
        if self._overtaken is not None:
            raise Overtaken(str(self._overtaken))

    def _run(self) -> None:
        is_away = False
        while not self._stop.wait(self.interval_s):
            try:
                self.beat()
                is_away = False
            except Overtaken as error:
                self._overtaken = error
                logger.error("%s", error)
                return
            except StoreError as error:
                if not is_away:
                    logger.warning("lease not renewed, another attempt may take over when it runs out: %s", error)
                is_away = True
