"""Parts of a run that are gone or have no room, and an end for a run whose main thread may wait for them forever."""

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

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
    error: Callable[[list[str]], RunError]  # makes the error from the lines of all faults
    patience_s: float = 0.0
    """Seconds for which one fault may last; a direct wait on the thing fails first, with a better message."""


@contextlib.contextmanager
def watching(looks: Iterable[Look], *, poll_s: float = POLL_S, end_s: float = END_S) -> Iterator[None]:
    """End the block with a look's error at a fault, wherever the main thread waits.

    A call of a lost actor may fail before a look sees why. With ranks on several nodes, a rank that is left may end the call
    first, by its own error about the missing peer. If the block's own clean-up hangs as well, the process ends with the
    error's exit code.
    """
    over, first, errors = threading.Event(), threading.Lock(), list[RunError]()

    def wake(number: int, frame: FrameType | None) -> None:
        if not over.is_set():
            raise KeyboardInterrupt  # `ray.get` lets no other exception out of a handler, and this one as a new one

    def watch(look: Look) -> None:
        since_s: dict[str, float] = {}
        while not over.wait(poll_s):
            try:
                lines = look.find()
                since_s = {key: since_s.get(key, time.monotonic()) for key in lines}
                if not any(time.monotonic() - began_s >= look.patience_s for began_s in since_s.values()):
                    continue
                error = look.error(sorted(lines.values()))
            except Exception as unanswered:  # noqa: BLE001 - Ray's inner interfaces raise errors of their own
                print(f"cannot ask Ray how the run is, trying again: {unanswered}", file=sys.stderr, flush=True)
                continue
            if not first.acquire(blocking=False):
                return
            errors.append(error)
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
            if not over.wait(end_s):
                print(f"opd.launch: {error}; what is left does not close: ending", file=sys.stderr, flush=True)
                os._exit(error.exit_code)
            return

    # A thread each: one look may wait for a Ray that is gone while another sees why.
    threads = [threading.Thread(target=watch, args=(look,), name="opd-watch", daemon=True) for look in looks]
    signal.signal(_SIGNAL, wake)  # it stays: a thread that outlasts the block may still send the signal
    for thread in threads:
        thread.start()
    try:
        try:
            yield
        except ray.exceptions.RayActorError as error:
            # A look may find that the actor's node is gone: `wake` ends the sleep.
            time.sleep(VERDICT_S if isinstance(error, ray.exceptions.ActorUnavailableError) else 2 * poll_s)
            raise
    except KeyboardInterrupt as error:
        if errors:
            raise errors[0] from error
        raise
    finally:
        over.set()
        for thread in threads:
            thread.join(1.0)  # it may wait for a GCS that is gone


def looks(sizes: Sizes, *, patience_s: float = PATIENCE_S, place_wait_s: float = SETTLE_S) -> list[Look]:
    """Make the looks for everything that a run may wait for in vain.

    After a minute without its control store Ray ends this process, unclosed. Of a part on a lost node nothing comes back;
    a lost process may have ended with the run. With a dead engine a weight sync waits.
    """

    def no_place(lines: list[str]) -> TooFewNodes:
        lacking = f"no node had room within {place_wait_s:g} s for {', '.join(lines)}"
        return TooFewNodes(f"{lacking}. Free now: {shortage(sizes) or 'enough'}")

    return [
        Look(find=lost_daemons, error=PartLost),
        Look(find=functools.partial(lost_parts, only_with_nodes=True), error=NodeLost),
        Look(find=lost_parts, error=PartLost, patience_s=patience_s),
        Look(find=unplaced_ranks, error=no_place, patience_s=place_wait_s),
        Look(find=dead_engines, error=PartLost, patience_s=patience_s),
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


def lost_parts(*, only_with_nodes: bool = False) -> dict[str, str]:
    """Return actors of this job that died with their process or node, a line each by id.

    An actor that its owner ended (`ray.kill`) or released is not lost. A run has no actors that leave by `exit_actor` or
    that Ray restarts. A node that shuts down in order ends its processes first.

    Args:
        only_with_nodes: leave out actors whose node is alive.
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
        if cause == ActorDiedErrorContext.NODE_DIED or (cause in _WHY and not only_with_nodes):
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


def dead_engines() -> dict[str, str]:
    """Return vLLM servers whose engine has died, a line each by name; a busy server answers no question in time."""
    asked = {}
    for name in ray.util.list_named_actors():
        if name.startswith(_SERVERS):
            with contextlib.suppress(ValueError):  # the actor has ended in between
                ask = ray.get_actor(name).__ray_call__.remote
                # A lambda travels whole; a server has no engine before its launch.
                asked[ask(lambda server: getattr(getattr(server, "engine", None), "errored", False))] = name
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
    found = {}
    for call in answered:
        with contextlib.suppress(ray.exceptions.RayError):  # another look finds a lost actor
            if ray.get(call):
                found[asked[call]] = f"the engine of {asked[call]}: its process is gone"
    return found
