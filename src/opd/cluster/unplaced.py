"""What of a run waits for a place: placement groups and actors for which no Ray node has the resources free."""

from __future__ import annotations

import functools
from collections import Counter

import ray
from ray._private.state import actors
from ray._private.state import state as ray_state
from ray.core.generated.gcs_pb2 import PlacementGroupTableData

from opd.cluster.nodes import FIX, offers
from opd.cluster.places import needed, shortage
from opd.cluster.watch import Look
from opd.config.needs import Sizes
from opd.errors import NoPlace

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
    why = lacking or f"a node needs {needed(sizes, whole)}, and something else holds part of it"
    left = "; ".join(map(str, free))
    return NoPlace(f"no node had room within {patience_s:g} s for {', '.join(lines)}: {why}. Free now: {left}. {FIX}")
