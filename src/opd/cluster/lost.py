"""Parts of a run that are gone or have no room, and an end for a run whose main thread may wait for them forever."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import ray
from ray._private import ray_constants
from ray._private.state import actors
from ray._private.state import state as ray_state
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.core.generated.gcs_pb2 import PlacementGroupTableData

from opd.cluster.nodes import shortage
from opd.errors import NodeLost, PartLost, RunError, TooFewNodes
from opd.experiment.pipeline import Sizes

POLL_S = 5.0  # Ray counts a node as dead after 15 to 30 s of silence; looking more often finds nothing sooner
# Closing may wait for the lost part, too. Without its control store Ray ends this process after 60 s.
END_S = 40.0
_JOIN_S = 1.0
_SIGNAL = signal.SIGUSR2
PATIENCE_S = 20.0  # a Ray call of the lost part fails by itself, and a process may end together with the run
# Ray calls an actor unavailable at once, and its node dead after 15 to 30 s of silence.
VERDICT_S = 40.0
SETTLE_S = 60.0  # for Ray to place ranks that have room
_ANSWER_S = 2.0
_SERVERS = "vllm_server"  # prefix of verl's names for their actors
_OOM = -1  # Ray's memory monitor has a cause of its own
_WHY = {
    ActorDiedErrorContext.NODE_DIED: "its node is gone",
    ActorDiedErrorContext.WORKER_DIED: "its process is gone",
    _OOM: "killed by Ray, its node was short of memory",
}
# A run needs both, and none of the other daemons (dashboard, log monitor).
_DAEMONS = (ray_constants.PROCESS_TYPE_GCS_SERVER, ray_constants.PROCESS_TYPE_RAYLET)


@dataclass(frozen=True, kw_only=True)
class Look:
    """One thing that ends a run."""

    find: Callable[[], dict[str, str]]  # returns the present faults: a line for people by the id of the thing
    patience_s: float
    """Seconds for which one fault may last; a direct wait on the thing fails first, with a better message."""
    error: Callable[[list[str]], RunError]  # makes the error from the lines of all faults


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
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
            try:
                lines = look.find()
                since_s = {key: since_s.get(key, time.monotonic()) for key in lines}
                if not any(time.monotonic() - began_s >= look.patience_s for began_s in since_s.values()):
                    continue
                error = look.error(sorted(lines.values()))
            except Exception as unanswered:  # noqa: BLE001 - Ray's inner interfaces raise errors of their own
                print(f"cannot ask Ray how the run is, trying again: {unanswered}", file=sys.stderr, flush=True)
                continue
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


def looks(sizes: Sizes, *, patience_s: float = PATIENCE_S, place_wait_s: float = SETTLE_S) -> list[Look]:
    """Make the looks for everything that a run may wait for in vain.

    After a minute without its control store Ray ends this process, unclosed. Of a part on a lost node nothing comes back;
    a lost process may have ended with the run. With a dead engine a weight sync waits.
    """

    def no_place(lines: list[str]) -> TooFewNodes:
        who = f"{place_wait_s:g} s for {', '.join(lines)}"
        return TooFewNodes(f"no node had room within {who}. Free now: {shortage(sizes) or 'enough'}")

    return [
        Look(find=lost_daemons, patience_s=0.0, error=PartLost),
        Look(find=parts_of_lost_nodes, patience_s=0.0, error=NodeLost),
        Look(find=lost_parts, patience_s=patience_s, error=PartLost),
        Look(find=unplaced_ranks, patience_s=place_wait_s, error=no_place),
        Look(find=Engines().dead, patience_s=patience_s, error=PartLost),
    ]


def lost_daemons() -> dict[str, str]:
    """Return ended daemons of an embedded Ray, a line each; a cluster's daemons are no children of this process."""
    node = ray._private.worker._global_node
    ended = {}
    for name, process in node.dead_processes() if node is not None else ():
        if name in _DAEMONS:
            code = process.returncode
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"which ended with {code}"
            ended[name] = f"Ray's {name} (process {process.pid}), {how}"
    return ended


def parts_of_lost_nodes() -> dict[str, str]:
    """Return lost actors whose node is gone; a node that shuts down in order ends its processes first."""
    return lost_parts(with_nodes=False)


def lost_parts(*, with_nodes: bool = True) -> dict[str, str]:
    """Return actors of this job that died with their node or, `with_nodes`, with their process only; a line each by id.

    An actor that its owner ended (`ray.kill`) or released is not lost. A run has no actors that leave by `exit_actor` or
    that Ray restarts.
    """
    job = ray.get_runtime_context().worker.current_job_id
    dead = actors(job_id=job, actor_state_name="DEAD")
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]} if dead else set()
    found = {}
    for key, actor in dead.items():
        death, address = actor["DeathCause"], actor["Address"]
        cause = _OOM if death.HasField("oom_context") else death.actor_died_error_context.reason
        if cause in _WHY and address["NodeID"] not in alive:
            cause = ActorDiedErrorContext.NODE_DIED
        if cause in _WHY and (with_nodes or cause == ActorDiedErrorContext.NODE_DIED):
            found[key] = f"{actor['ActorClassName']} at {address['IPAddress']}: {_WHY[cause]}"
    return found


def unplaced_ranks() -> dict[str, str]:
    """Return placement groups of this job without a node, a line each by id; Ray's public table does not name the job."""
    job = ray.get_runtime_context().worker.current_job_id.binary()
    table = ray_state._connect_and_get_accessor().get_placement_group_table()
    return {
        group.placement_group_id.hex(): f"placement group {group.name}"
        for group in map(PlacementGroupTableData.FromString, table)
        if group.creator_job_id == job and group.state == PlacementGroupTableData.PENDING
    }


class Engines:
    """Questions to the run's vLLM servers about their engines; a busy server has one question at a time."""

    def __init__(self) -> None:
        self._asked: dict[str, ray.ObjectRef] = {}

    def dead(self) -> dict[str, str]:
        """Return dead engines, a line each by their servers' names; an engine that has died stays dead."""
        names = [name for name in ray.util.list_named_actors() if name.startswith(_SERVERS)]
        for name in names:
            if name not in self._asked:
                with contextlib.suppress(ValueError):  # the actor has ended in between
                    # A lambda travels whole; a server has no engine before its launch.
                    self._asked[name] = ray.get_actor(name).__ray_call__.remote(
                        lambda server: getattr(getattr(server, "engine", None), "errored", False)
                    )
        answered, _ = ray.wait(list(self._asked.values()), num_returns=max(1, len(self._asked)), timeout=_ANSWER_S)
        found = {}
        for name in [name for name, call in self._asked.items() if call in answered]:
            with contextlib.suppress(ray.exceptions.RayError):  # another look finds a lost actor
                if name in names and ray.get(self._asked[name]):
                    found[name] = f"the engine of {name}: its process is gone"
                    continue
            del self._asked[name]
        return found


@contextlib.contextmanager
def naming_lost_nodes() -> Iterator[None]:
    """Turn the error of a call of an unreachable or dead actor into NodeLost where the actor's node is gone.

    With ranks on several nodes, a rank that is left may end the call first, by its own error about the missing peer.
    """
    try:
        yield
    except ray.exceptions.RayActorError as error:
        until_s = time.monotonic() + VERDICT_S * isinstance(error, ray.exceptions.ActorUnavailableError)
        while not (gone := parts_of_lost_nodes()) and time.monotonic() < until_s:
            time.sleep(POLL_S)
        if not gone:
            raise
        traceback.print_exception(error)
        raise NodeLost(sorted(gone.values())) from error
