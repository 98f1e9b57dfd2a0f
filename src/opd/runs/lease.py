"""Signs of life of an attempt: the thread that renews its lease or says that it must end, and a lock of its process."""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from opd.errors import LeaseLost, Overtaken, StoreUnavailable

logger = logging.getLogger(__name__)

# An attempt may miss three beats of a lease before another attempt takes over.
BEATS_PER_LEASE = 4
OUTAGE_S = 1800.0
"""Seconds for which an attempt survives an unreachable store: no other attempt can claim the run there meanwhile."""
ALIVE_FILE = ".alive"
"""A hidden file with the claim's token and its own inode, locked by the claim's process: a copy of it proves nothing."""
HELD: list[int] = []  # descriptors of this process's locks; closing a descriptor would release its lock


class Watch:
    """A thread that calls `beat` a few times in a term, and records when the attempt has lost the run.

    The attempt must end if the lease was not renewed for `term_s`, or for OUTAGE_S while the store is unreachable.
    """

    def __init__(
        self, *, beat: Callable[[], None], term_s: float, end: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.lost: LeaseLost | None = None  # the reason why the attempt must end, once its lease is too old
        self._beat_once, self._term_s, self._end, self._clock = beat, term_s, end, clock
        self._overtaken: Overtaken | None = None
        self._trouble: Exception | None = None
        # Times of the last renewal, and of the last answer but for a refusal: an unreachable store excuses for long.
        self._renewed_s = self._excused_s = clock()
        self._has_warned = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="opd-run-lease", daemon=True)

    def start(self) -> None:
        """Start the thread; the lease counts from now."""
        self._renewed_s = self._excused_s = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise Overtaken; raise LeaseLost if the attempt trains another step after the request to end."""
        was_asked = self.lost is not None
        if self._overtaken is None and not was_asked and self._clock() - self._excused_s > self._term_s:
            self._beat()  # the whole process may have been paused, with its thread
        if self._overtaken is not None:
            raise Overtaken(str(self._overtaken))
        if self.lost is not None and was_asked and self._has_warned:
            raise LeaseLost(str(self.lost))
        self._has_warned = self.lost is not None

    def _run(self) -> None:
        while self._overtaken is None and not self._stop.wait(self._term_s / BEATS_PER_LEASE):
            self._beat()

    def _beat(self) -> None:
        """Beat once; ask the attempt to end if the lease is too old after that."""
        try:
            self._beat_once()
        except Overtaken as error:
            self._overtaken = error
            logger.error("%s", error)
        except Exception as error:  # noqa: BLE001 - this thread keeps the run: it must survive any answer of a store
            self._miss(error)
        else:
            self._trouble, self._renewed_s = None, self._clock()
            self._excused_s = self._renewed_s

    def _miss(self, error: Exception) -> None:
        if type(error) is not type(self._trouble):
            logger.warning("lease not renewed, another attempt may take over when it runs out: %r", error)
        self._trouble, now_s, is_away = error, self._clock(), isinstance(error, StoreUnavailable)
        self._excused_s = now_s if is_away else self._excused_s
        age_s, outage_s = now_s - self._renewed_s, max(OUTAGE_S, self._term_s)
        is_too_old = now_s - self._excused_s > self._term_s or age_s > outage_s
        if self.lost is None and is_too_old:
            self.lost = LeaseLost(
                f"the lease was last renewed {age_s:.0f} s ago and {outage_s if is_away else self._term_s:g} s are allowed, "
                f"so another attempt may own the run; the last answer was {error!r}. This attempt saves on its own disk and "
                "ends. Fix: give it access to the store, then start it again"
            )
            logger.error("%s", self.lost)
            self._end()


def boot_id() -> str:
    """Return the name of the kernel's present boot, which all containers of a machine share; empty outside Linux."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def lock_alive(folder: Path, token: str) -> None:
    """Lock the attempt's file until this process and its forks end; a disk without locks leaves only the lease.

    The file is written after it is locked, so no reader finds a token without a lock.
    """
    try:
        descriptor = os.open(folder / ALIVE_FILE, os.O_CREAT | os.O_WRONLY, 0o644)
        HELD.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, f"{token} {os.fstat(descriptor).st_ino}".encode())
    except OSError as error:
        logger.info("no lock in %s (%s): the next attempt will wait for the lease", folder, error)


def is_locked(folder: Path, token: str) -> bool | None:
    """Return True while the process of a claim under this kernel holds its lock, False after its end, None if not known."""
    try:
        with open(folder / ALIVE_FILE, "rb") as file:
            if file.read() != f"{token} {os.fstat(file.fileno()).st_ino}".encode():
                return None
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return None
