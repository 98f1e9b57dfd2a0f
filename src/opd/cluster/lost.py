"""Parts of a run that are gone with their node or their process."""

from __future__ import annotations

import contextlib
import functools
import signal
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Iterator

import ray
from ray._private import ray_constants
from ray._private.state import actors
from ray._private.state import state as ray_state
from ray.core.generated.common_pb2 import ActorDeathCause, ActorDiedErrorContext
from ray.core.generated.gcs_pb2 import PlacementGroupTableData

from opd.cluster.nodes import FIX, offers
from opd.cluster.places import needed, shortage
from opd.cluster.watch import POLL_S, Look
from opd.config.needs import Sizes
from opd.errors import NodeLost, NoPlace, PartLost

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


_SERVERS = "vllm_server"  # how verl names their actors begins so
_ANSWER_S = 2.0


def look_for_dead_engines() -> Look:
    """For `Watch`: a request for an answer fails by itself then, weights or a sleep are waited for."""
    return Look(find=Engines().dead, patience_s=PATIENCE_S, error=PartLost)


class Engines:
    """Asks each vLLM server of the run for its engine; a server that is busy is not asked again before it has answered."""

    def __init__(self) -> None:
        self._asked: dict[str, ray.ObjectRef] = {}
        self._dead: set[str] = set()  # by their last answers

    def dead(self) -> dict[str, str]:
        """Engines that have died, a line each by their servers' names."""
        names = [name for name in ray.util.list_named_actors() if name.startswith(_SERVERS)]
        for name in names:
            if name not in self._asked:
                with contextlib.suppress(ValueError):  # the actor has ended in between
                    # In verl's words, and as a lambda, which travels whole; a server has no engine before it is launched.
                    self._asked[name] = ray.get_actor(name).__ray_call__.remote(
                        lambda server: getattr(getattr(server, "engine", None), "errored", False)
                    )
        answered, _ = ray.wait(list(self._asked.values()), num_returns=max(1, len(self._asked)), timeout=_ANSWER_S)
        for name in [name for name, call in self._asked.items() if call in answered]:
            self._dead.discard(name)
            with contextlib.suppress(ray.exceptions.RayError):  # a lost actor is another look's
                if ray.get(self._asked.pop(name)):
                    self._dead.add(name)
        self._dead.intersection_update(names)
        return {name: f"the engine of {name}: its process is gone" for name in self._dead}


# Far longer than Ray needs for a place that is there, the start of a worker process on a busy node included.
PLACE_WAIT_S = 600.0
_PENDING = (PlacementGroupTableData.PENDING, PlacementGroupTableData.RESCHEDULING)


def look_for_unplaced_parts(sizes: Sizes, *, patience_s: float = PLACE_WAIT_S) -> Look:
    """For `Watch`."""
    return Look(find=unplaced_parts, patience_s=patience_s, error=functools.partial(_no_place, sizes, patience_s))


def unplaced_parts() -> dict[str, str]:
    """Placement groups and actors of this job that have no node yet, a line each by id.

    An actor that has its node is placed, however long it takes to start there.
    """
    job = ray.get_runtime_context().worker.current_job_id
    lines = {}
    for raw in ray_state._connect_and_get_accessor().get_placement_group_table():
        group = PlacementGroupTableData.FromString(raw)
        if group.creator_job_id == job.binary() and group.state in _PENDING:
            lines[group.placement_group_id.hex()] = f"placement group {group.name} ({_bundles(group)})"
    for key, actor in actors(job_id=job, actor_state_name="PENDING_CREATION").items():
        if not actor["Pid"]:
            lines[key] = f"actor {actor['Name'] or actor['ActorClassName']}"
    return lines


def _bundles(group: PlacementGroupTableData) -> str:
    """`8 x CPU 3 and GPU 1`"""
    bundles = Counter(tuple(sorted(bundle.unit_resources.items())) for bundle in group.bundles)
    return ", ".join(
        f"{count} x {' and '.join(f'{name} {amount:g}' for name, amount in bundle)}"
        for bundle, count in bundles.items()
    )


def _no_place(sizes: Sizes, patience_s: float, lines: list[str]) -> NoPlace:
    whole, free = offers()
    lacking = shortage(sizes, whole)
    why = lacking or f"a node needs {needed(sizes)}, and something else holds part of it"
    left = "; ".join(map(str, free))
    return NoPlace(f"no node had room within {patience_s:g} s for {', '.join(lines)}: {why}. Free now: {left}. {FIX}")
