"""Ends a run that has lost a node or an actor of its own: the queue's sockets wait for ever for a peer that is gone."""

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
# What waits on a Ray call of the lost part itself fails by itself, with the better message.
PATIENCE_S = 20.0
# Closing what is left may wait for the lost part too.
END_S = 60.0
_JOIN_S = 1.0
_OOM = -1  # Ray's memory monitor has a cause of its own
_WHY = {
    ActorDiedErrorContext.NODE_DIED: "its node is gone",
    ActorDiedErrorContext.WORKER_DIED: "its process is gone",
    _OOM: "killed by Ray, its node was short of memory",
}
_SIGNAL = signal.SIGUSR2


def lost_parts() -> list[str]:
    """Actors of this job that died with their node or their process, one line each.

    One that its owner ended (`ray.kill`), or that nobody held any more, is not lost. An actor that leaves by `exit_actor`
    would count as lost, and one that Ray restarts is not dead: a run has neither.
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
    """While entered, a lost part ends the block with `PartLost`, wherever the main thread waits.

    If what the block then closes hangs as well, the process ends with exit code 1. Only the main thread can be woken; entered
    in another this does nothing.
    """

    def __init__(self, *, poll_s: float = POLL_S, patience_s: float = PATIENCE_S, end_s: float = END_S) -> None:
        self.poll_s, self.patience_s, self.end_s = poll_s, patience_s, end_s
        self._over = threading.Event()
        self._lost: list[str] = []
        self._before: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LossWatch:
        if threading.current_thread() is threading.main_thread():
            lost_parts()  # a Ray that cannot be asked is an error here, not in a thread
            self._before = signal.signal(_SIGNAL, self._wake)
            self._thread = threading.Thread(target=self._watch, name="opd-loss-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)  # it may be asking a GCS that is away
            signal.signal(_SIGNAL, self._before)
        if self._lost and isinstance(error, KeyboardInterrupt):
            raise PartLost(self._lost) from error

    def _watch(self) -> None:
        since_s = None
        while not self._over.wait(self.poll_s):
            try:
                lost = lost_parts()
            except (ray.exceptions.RayError, OSError) as error:
                print(f"cannot ask Ray for lost actors, trying again: {error}", file=sys.stderr, flush=True)
                continue
            if not lost:
                continue
            since_s = time.monotonic() if since_s is None else since_s
            if time.monotonic() - since_s >= self.patience_s:
                self._end(lost)
                return

    def _end(self, lost: list[str]) -> None:
        self._lost = lost
        signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        if not self._over.wait(self.end_s):
            print(f"opd.launch: {PartLost(lost)}; what is left does not close: ending", file=sys.stderr, flush=True)
            os._exit(PartLost.exit_code)

    def _wake(self, number: int, frame: FrameType | None) -> None:
        if not self._over.is_set():
            # Of all exceptions `ray.get` lets only this one out of a handler, and as a new one.
            raise KeyboardInterrupt
