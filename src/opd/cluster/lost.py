"""What of a run is gone with its node or its process: the queue's sockets wait for ever for such a peer."""

from __future__ import annotations

import signal
import subprocess

import ray
from ray._private import ray_constants
from ray._private.state import actors
from ray.core.generated.common_pb2 import ActorDeathCause, ActorDiedErrorContext

from opd.cluster.watch import Look
from opd.errors import PartLost

# What waits on a Ray call of the lost part itself fails by itself, with the better message.
PATIENCE_S = 20.0
_OOM = -1  # Ray's memory monitor has a cause of its own
_WHY = {
    ActorDiedErrorContext.NODE_DIED: "its node is gone",
    ActorDiedErrorContext.WORKER_DIED: "its process is gone",
    _OOM: "killed by Ray, its node was short of memory",
}
# Without either of them nothing of Ray works; a run does not need the others (dashboard, log monitor).
_DAEMONS = (ray_constants.PROCESS_TYPE_GCS_SERVER, ray_constants.PROCESS_TYPE_RAYLET)


def look_for_lost_parts() -> Look:
    """For `Watch`."""
    return Look(find=lost_parts, patience_s=PATIENCE_S, error=PartLost)


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
    job = ray.get_runtime_context().worker.current_job_id
    lines = {}
    for key, actor in actors(job_id=job, actor_state_name="DEAD").items():
        if why := _WHY.get(_cause(actor["DeathCause"])):
            lines[key] = f"{actor['ActorClassName']} at {actor['Address']['IPAddress']}: {why}"
    return lines


def _cause(death: ActorDeathCause) -> int:
    """The reason as Ray's GCS has it."""
    return _OOM if death.HasField("oom_context") else death.actor_died_error_context.reason
