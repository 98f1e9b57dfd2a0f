"""Requests and limits of a run's pods: what a file does not give is what the run needs."""

from __future__ import annotations

import math

from opd.config.cluster.base import Resources
from opd.config.cluster.pods import RayPods
from opd.config.needs import NodeNeeds


def resources(pods: RayPods, needed: NodeNeeds) -> tuple[Resources, Resources]:
    """Requests and limits. Of CPU and memory alike a request that is missing is the limit, then what is needed; the memory
    limit that is missing is the request; CPUs have no limit unless one is given."""
    memory = f"{math.ceil(needed.memory_gib + pods.shm_gib)}Gi"
    own = {"cpu": pods.limits.get("cpu", needed.cpus), "memory": pods.limits.get("memory", memory)}
    requests = {**own, **pods.requests}
    return requests, {"memory": requests["memory"], **pods.limits}
