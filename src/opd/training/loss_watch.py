"""Ends a run that has lost a node or an actor of its own: the queue's sockets would wait for a peer that is gone for ever."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

import ray
from ray._private.state import actors
from ray.core.generated.common_pb2 import ActorDeathCause, ActorDiedErrorContext

from opd.training.errors import PartLost

# A node counts as dead after 15 to 30 s without a word; looking more often finds nothing sooner.
POLL_S = 5.0
# What waits on a Ray call fails by itself, with the better message.
PATIENCE_S = 20.0
# Closing what is left may wait for the lost part too.
END_S = 60.0
_OOM = -1  # Ray's memory monitor has a cause of its own
_WHY = {
    ActorDiedErrorContext.NODE_DIED: "its node is gone",
    ActorDiedErrorContext.WORKER_DIED: "its process is gone",
    _OOM: "killed by Ray, its node was short of memory",
}
_SIGNAL = signal.SIGUSR2


def lost_parts() -> list[str]:
    """Actors of this job that died with their node or their process, one line each.

    One that was ended by its owner, or that nobody held any more, is not lost. None of a run's actors is restarted by Ray.
    """
    job = ray.get_runtime_context().worker.current_job_id
    lines = []
    for actor in actors(job_id=job, actor_state_name="DEAD").values():
        if why := _WHY.get(_cause(actor["DeathCause"])):
            lines.append(f"{actor['ActorClassName']} at {actor['Address']['IPAddress']}: {why}")
    return sorted(lines)


def _cause(death: ActorDeathCause) -> int:
    """The reason as Ray's GCS has it."""
    return _OOM if death.HasField("oom_context") else death.actor_died_error_context.reason


class LossWatch:
    """While entered, a lost part raises `PartLost` in the main thread, wherever that waits; what then hangs is ended hard.

    Only the main thread can be woken; entered in another this does nothing.
    """

    def __init__(self, *, poll_s: float = POLL_S, patience_s: float = PATIENCE_S, end_s: float = END_S) -> None:
        self.poll_s, self.patience_s, self.end_s = poll_s, patience_s, end_s
        self._over = threading.Event()
        self._lost: list[str] = []
        self._before: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LossWatch:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(_SIGNAL, self._raise)
            self._thread = threading.Thread(target=self._watch, name="opd-loss-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            signal.signal(_SIGNAL, self._before)

    def _watch(self) -> None:
        since_s = None
        while not self._over.wait(self.poll_s):
            lost = lost_parts()
            if not lost:
                continue
            since_s = time.monotonic() if since_s is None else since_s
            if time.monotonic() - since_s < self.patience_s:
                continue
            self._lost = lost
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
            if not self._over.wait(self.end_s):
                print(
                    f"opd.launch: {PartLost(self._lost)}; what is left does not close: ending",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)
            return

    def _raise(self, number: int, frame: FrameType | None) -> None:
        raise PartLost(self._lost)
