"""What of a run is gone with its node or its process: the queue's sockets wait for ever for such a peer."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
import traceback
from collections.abc import Iterator

import ray
from ray._private import ray_constants
from ray._private.state import actors
from ray.core.generated.common_pb2 import ActorDeathCause, ActorDiedErrorContext

from opd.cluster.watch import POLL_S, Look
from opd.errors import NodeLost, PartLost

# What waits on a Ray call of the lost part itself fails by itself, and a process may end as the run does.
PATIENCE_S = 20.0
# Ray calls an actor unavailable at once and its node dead after 15 to 30 s without a word.
VERDICT_S = 40.0
_OOM = -1  # Ray's memory monitor has a cause of its own
_WHY = {
    ActorDiedErrorContext.NODE_DIED: "its node is gone",
    ActorDiedErrorContext.WORKER_DIED: "its process is gone",
    _OOM: "killed by Ray, its node was short of memory",
}
# Without either of them nothing of Ray works; a run does not need the others (dashboard, log monitor).
_DAEMONS = (ray_constants.PROCESS_TYPE_GCS_SERVER, ray_constants.PROCESS_TYPE_RAYLET)


def look_for_lost_parts() -> Look:
    """For `Watch`: a process, which may have ended with the run itself."""
    return Look(find=lost_parts, patience_s=PATIENCE_S, error=PartLost)


def look_for_lost_nodes() -> Look:
    """For `Watch`: what is gone with its node, of which nothing comes back."""
    return Look(find=parts_of_lost_nodes, patience_s=0.0, error=NodeLost)


def look_for_lost_daemons() -> Look:
    """For `Watch`. Ray itself ends this process after a minute without its control store, with nothing closed."""
    return Look(find=lost_daemons, patience_s=0.0, error=PartLost)


def lost_daemons() -> dict[str, str]:
    """The daemons of an embedded Ray that have ended, a line each; none of a cluster's, which are no children of ours."""
    node = ray._private.worker._global_node
    return {
        name: f"Ray's {name} (process {process.pid}), {_ended(process)}"
        for name, process in (node.dead_processes() if node is not None else ())
        if name in _DAEMONS
    }


def _ended(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"which ended with {code}"


def lost_parts() -> dict[str, str]:
    """Actors of this job that died with their node or their process, a line each by id.

    One that its owner ended (`ray.kill`), or that nobody held any more, is not lost. An actor that leaves by `exit_actor`
    would count as lost, and one that Ray restarts is not dead: a run has neither.
    """
    return {key: line for key, line, _ in _lost()}


def parts_of_lost_nodes() -> dict[str, str]:
    """Those whose node is gone; one that is told to go ends its processes first."""
    return {key: line for key, line, has_node in _lost() if not has_node}


@contextlib.contextmanager
def naming_lost_nodes() -> Iterator[None]:
    """Within it a call of an actor that Ray cannot reach, or that died, ends as NodeLost where the actor's node is gone.

    Where ranks are on several nodes, one that is left may end the call before: by its own error, of the peer that it misses.
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


def _lost() -> list[tuple[str, str, bool]]:
    """Id, line and whether the node is still there."""
    job = ray.get_runtime_context().worker.current_job_id
    dead = actors(job_id=job, actor_state_name="DEAD")
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]} if dead else set()
    found = []
    for key, actor in dead.items():
        if (cause := _cause(actor["DeathCause"])) in _WHY:
            address = actor["Address"]
            has_node = cause != ActorDiedErrorContext.NODE_DIED and address["NodeID"] in alive
            why = _WHY[cause if has_node else ActorDiedErrorContext.NODE_DIED]
            found.append((key, f"{actor['ActorClassName']} at {address['IPAddress']}: {why}", has_node))
    return found


def _cause(death: ActorDeathCause) -> int:
    """The reason as Ray's GCS has it."""
    return _OOM if death.HasField("oom_context") else death.actor_died_error_context.reason
