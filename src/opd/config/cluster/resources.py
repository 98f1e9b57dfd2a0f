"""Requests and limits of a run's pods: what a file does not give is what the run needs, and less is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

from opd.config.cluster.base import Resources
from opd.config.cluster.pods import RayPods
from opd.config.cluster.quantity import GIB, number
from opd.config.errors import Problem
from opd.config.needs import NodeNeeds


def resources(pods: RayPods, needed: NodeNeeds) -> tuple[Resources, Resources]:
    """Requests and limits. Of CPU and memory alike a request that is missing is the limit, then what is needed; the memory
    limit that is missing is the request; CPUs have no limit unless one is given."""
    memory = f"{math.ceil(needed.memory_gib + pods.shm_gib)}Gi"
    own = {"cpu": pods.limits.get("cpu", needed.cpus), "memory": pods.limits.get("memory", memory)}
    requests = {**own, **pods.requests}
    return requests, {"memory": requests["memory"], **pods.limits}


def check_ray_pods(role: str, pods: RayPods, needed: NodeNeeds, *, ray_counts_cpus: bool) -> Iterator[Problem]:
    """Every broken rule of the head's or the workers' resources.

    Args:
        role: key below `cluster`.
        ray_counts_cpus: Ray schedules by the pod's CPUs: its limit, else its request, in whole ones (KubeRay rounds up).
    """
    requests, limits = resources(pods, needed)
    yield from check_limits(role, requests, limits)
    counted, cpus = ("limits", limits["cpu"]) if "cpu" in limits else ("requests", requests["cpu"])
    if ray_counts_cpus and math.ceil(number(cpus)) < needed.cpus:
        yield Problem(
            path=f"cluster.{role}.{counted}.cpu",
            value=cpus,
            rule=f"Ray places a run by CPUs, and a node of this one needs {needed.cpus} ({needed.cpus_by_part()}): with "
            "fewer it would hold its GPUs and wait for ever",
            fix=f"use at least {needed.cpus}, or remove the key",
        )
    if number(limits["memory"]) < int(pods.shm_gib * GIB):
        yield Problem(
            path=f"cluster.{role}.shmGib",
            value=pods.shm_gib,
            rule=f"/dev/shm counts against the memory limit, which is {limits['memory']}",
            fix=f"lower it, or raise cluster.{role}.limits.memory",
        )
    least = math.ceil(needed.least_gib + pods.object_store_gib)
    if number(limits["memory"]) < least * GIB:
        yield Problem(
            path=f"cluster.{role}.limits.memory",
            value=limits["memory"],
            rule=f"the processes of one pod and Ray's object store take {least} GiB before a model is loaded",
            fix=f"use at least {least}Gi, or remove the key",
        )


def check_limits(role: str, requests: Resources, limits: Resources) -> Iterator[Problem]:
    """No request above its limit: the API server refuses such a pod only when it is made."""
    for name in sorted(requests.keys() & limits.keys()):
        if number(requests[name]) > number(limits[name]):
            yield Problem(
                path=f"cluster.{role}.requests.{name}",
                value=requests[name],
                rule=f"a request is at most its limit, which is {limits[name]}",
                fix=f"lower it, or raise cluster.{role}.limits.{name}",
            )
