"""An end for a run whose main thread may wait forever: for a lost peer, or for a place that no node has."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from opd.errors import RunError

# Ray counts a node as dead after 15 to 30 s of silence; looking more often finds nothing sooner.
POLL_S = 5.0
# Closing may wait for the lost part, too. Without its control store Ray ends this process after 60 s.
END_S = 40.0
_JOIN_S = 1.0
_SIGNAL = signal.SIGUSR2


@dataclass(frozen=True, kw_only=True)
class Look:
    """One thing that ends a run.

    Attributes:
        find: returns the present faults: a line for people by the id of the thing.
        patience_s: seconds for which one fault may last; a direct wait on the thing fails first, with a better message.
        error: makes the error from the lines of all faults.
    """

    find: Callable[[], dict[str, str]]
    patience_s: float
    error: Callable[[list[str]], RunError]


class Watch:
    """A context whose block ends with a look's error at a fault, wherever the main thread waits.

    If the block's own clean-up hangs as well, the process ends with the error's exit code. Only the main thread can be
    woken; entered in another thread this does nothing.
    """

    def __init__(self, looks: Iterable[Look], *, poll_s: float = POLL_S, end_s: float = END_S) -> None:
        self.looks, self.poll_s, self.end_s = list(looks), poll_s, end_s
        self._over = threading.Event()
        self._error: RunError | None = None
        self._before: Any = None
        self._threads: list[threading.Thread] = []
        self._first = threading.Lock()

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread():
            for look in self.looks:
                look.find()  # a Ray that does not answer is an error here, not in a thread
            self._before = signal.signal(_SIGNAL, self._wake)
            # A thread each: one look may wait for a Ray that is gone while another sees why.
            self._threads = [
                threading.Thread(target=self._watch, args=(look,), name="opd-watch", daemon=True) for look in self.looks
            ]
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_JOIN_S)  # it may wait for a GCS that is gone
        if self._threads:
            # A thread that outlasts the wait may send the signal, which by default ends the process.
            is_one_left = any(thread.is_alive() for thread in self._threads)
            signal.signal(_SIGNAL, signal.SIG_IGN if is_one_left else self._before)
        if self._error is not None and isinstance(error, KeyboardInterrupt):
            raise self._error from error

    def _watch(self, look: Look) -> None:
        since_s: dict[str, float] = {}
        while not self._over.wait(self.poll_s):
            error: RunError | None = None
            try:
                lines = look.find()
                now_s = time.monotonic()
                for gone in since_s.keys() - lines.keys():
                    del since_s[gone]
                if any(now_s - since_s.setdefault(key, now_s) >= look.patience_s for key in lines):
                    error = look.error(sorted(lines.values()))
            except Exception as unanswered:  # noqa: BLE001 - Ray's inner interfaces raise errors of their own
                print(f"cannot ask Ray how the run is, trying again: {unanswered}", file=sys.stderr, flush=True)
                continue
            if error is not None:
                if self._first.acquire(blocking=False):
                    self._end(error)
                return

    def _end(self, error: RunError) -> None:
        if self._over.is_set():
            return  # the block has ended meanwhile
        self._error = error
        signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        if not self._over.wait(self.end_s):
            print(f"opd.launch: {error}; what is left does not close: ending", file=sys.stderr, flush=True)
            os._exit(error.exit_code)

    def _wake(self, number: int, frame: FrameType | None) -> None:
        if not self._over.is_set():
            raise KeyboardInterrupt  # `ray.get` lets no other exception out of a handler, and this one as a new one
