"""Parts of a run that are gone with their node or process, or that found no node: a peer may wait for them forever."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator

import ray
from ray._private import ray_constants
from ray._private.state import actors
from ray._private.state import state as ray_state
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.core.generated.gcs_pb2 import PlacementGroupTableData

from opd.cluster.nodes import FIX, offers
from opd.cluster.places import needed, shortage
from opd.cluster.watch import POLL_S, Look
from opd.errors import NodeLost, NoPlace, PartLost
from opd.experiment.needs import Sizes

# A Ray call of the lost part fails by itself, and a process may end together with the run.
PATIENCE_S = 20.0
# Ray calls an actor unavailable at once, and its node dead after 15 to 30 s of silence.
VERDICT_S = 40.0
# Far longer than Ray needs for an existing place, with the start of a worker process on a busy node.
PLACE_WAIT_S = 600.0
_ANSWER_S = 2.0
_OOM = -1  # Ray's memory monitor has a cause of its own
_WHY = {
    ActorDiedErrorContext.NODE_DIED: "its node is gone",
    ActorDiedErrorContext.WORKER_DIED: "its process is gone",
    _OOM: "killed by Ray, its node was short of memory",
}
# A run needs both, and none of the other daemons (dashboard, log monitor).
_DAEMONS = (ray_constants.PROCESS_TYPE_GCS_SERVER, ray_constants.PROCESS_TYPE_RAYLET)
_SERVERS = "vllm_server"  # prefix of verl's names for their actors
_PENDING = (PlacementGroupTableData.PENDING, PlacementGroupTableData.RESCHEDULING)


def looks(sizes: Sizes, *, patience_s: float = PATIENCE_S, place_wait_s: float = PLACE_WAIT_S) -> list[Look]:
    """Make the looks for everything that a run may wait for in vain.

    After a minute without its control store Ray ends this process, unclosed. Of a part on a lost node nothing comes back;
    a lost process may have ended with the run. With a dead engine a weight sync or a sleep waits.
    """

    def no_place(lines: list[str]) -> NoPlace:
        whole, free = offers()
        why = shortage(sizes, whole) or f"a node needs {needed(sizes)}, and something else holds part of it"
        left = "; ".join(map(str, free))
        who = f"{place_wait_s:g} s for {', '.join(lines)}"
        return NoPlace(f"no node had room within {who}: {why}. Free now: {left}. {FIX}")

    return [
        Look(find=lost_daemons, patience_s=0.0, error=PartLost),
        Look(find=parts_of_lost_nodes, patience_s=0.0, error=NodeLost),
        Look(find=lost_parts, patience_s=patience_s, error=PartLost),
        Look(find=unplaced_parts, patience_s=place_wait_s, error=no_place),
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


def lost_parts() -> dict[str, str]:
    """Return actors of this job that died with their node or their process, a line each by id.

    An actor that its owner ended (`ray.kill`) or released is not lost. A run has no actors that leave by `exit_actor` or
    that Ray restarts.
    """
    return {key: line for key, line, _ in _lost()}


def parts_of_lost_nodes() -> dict[str, str]:
    """Return lost actors whose node is gone; a node that shuts down in order ends its processes first."""
    return {key: line for key, line, has_node in _lost() if not has_node}


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


def _lost() -> list[tuple[str, str, bool]]:
    """Return id, line, and True if the node is still there."""
    job = ray.get_runtime_context().worker.current_job_id
    dead = actors(job_id=job, actor_state_name="DEAD")
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]} if dead else set()
    found = []
    for key, actor in dead.items():
        death, address = actor["DeathCause"], actor["Address"]
        cause = _OOM if death.HasField("oom_context") else death.actor_died_error_context.reason
        if cause in _WHY:
            has_node = cause != ActorDiedErrorContext.NODE_DIED and address["NodeID"] in alive
            why = _WHY[cause if has_node else ActorDiedErrorContext.NODE_DIED]
            found.append((key, f"{actor['ActorClassName']} at {address['IPAddress']}: {why}", has_node))
    return found


class Engines:
    """Questions to the run's vLLM servers about their engines; a busy server has one question at a time."""

    def __init__(self) -> None:
        self._asked: dict[str, ray.ObjectRef] = {}
        self._dead: set[str] = set()  # by their last answers

    def dead(self) -> dict[str, str]:
        """Return dead engines, a line each by their servers' names."""
        names = [name for name in ray.util.list_named_actors() if name.startswith(_SERVERS)]
        for name in names:
            if name not in self._asked:
                with contextlib.suppress(ValueError):  # the actor has ended in between
                    # A lambda travels whole; a server has no engine before its launch.
                    self._asked[name] = ray.get_actor(name).__ray_call__.remote(
                        lambda server: getattr(getattr(server, "engine", None), "errored", False)
                    )
        answered, _ = ray.wait(list(self._asked.values()), num_returns=max(1, len(self._asked)), timeout=_ANSWER_S)
        for name in [name for name, call in self._asked.items() if call in answered]:
            self._dead.discard(name)
            with contextlib.suppress(ray.exceptions.RayError):  # another look finds a lost actor
                if ray.get(self._asked.pop(name)):
                    self._dead.add(name)
        self._dead.intersection_update(names)
        return {name: f"the engine of {name}: its process is gone" for name in self._dead}


def unplaced_parts() -> dict[str, str]:
    """Return placement groups and actors of this job without a node, a line each by id; a starting actor has its node."""
    job = ray.get_runtime_context().worker.current_job_id
    lines = {}
    for raw in ray_state._connect_and_get_accessor().get_placement_group_table():
        group = PlacementGroupTableData.FromString(raw)
        if group.creator_job_id == job.binary() and group.state in _PENDING:
            bundles = Counter(tuple(sorted(bundle.unit_resources.items())) for bundle in group.bundles)
            shapes = ", ".join(
                f"{count} x {' and '.join(f'{name} {amount:g}' for name, amount in bundle)}"
                for bundle, count in bundles.items()
            )
            lines[group.placement_group_id.hex()] = f"placement group {group.name} ({shapes})"
    for key, actor in actors(job_id=job, actor_state_name="PENDING_CREATION").items():
        if not actor["Pid"]:
            lines[key] = f"actor {actor['Name'] or actor['ActorClassName']}"
    return lines
