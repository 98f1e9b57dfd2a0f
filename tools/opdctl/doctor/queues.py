"""Reads Kueue's queues for doctor."""

from __future__ import annotations

from collections.abc import Sequence

from opdctl.doctor.check_shares import check_kueue
from opdctl.doctor.looking import SEES
from opdctl.doctor.placement import Group
from opdctl.doctor.report import Check, bad, unseen
from opdctl.doctor.selectors import Tree
from opdctl.kube.client import KubeApi
from opdctl.kube.errors import HTTP_FORBIDDEN, ClusterError

KUEUE = "kueue.x-k8s.io"
QUEUE_LABEL = f"{KUEUE}/queue-name"


def look_at_queue(api: KubeApi, job: Tree, groups: Sequence[Group]) -> list[Check]:
    """Whether the queue that a RayJob is labelled for is there, and can ever admit it; Volcano's queues are not looked at."""
    name = job["metadata"]["labels"].get(QUEUE_LABEL)
    if name is None:
        return []
    group = api.find(f"/apis/{KUEUE}")
    if group is None:
        return [
            bad(
                "queue",
                "Kueue is not installed",
                "an admin installs it, with its RayJob integration, or drop cluster.queue",
            )
        ]
    base = f"/apis/{group['preferredVersion']['groupVersion']}"
    queues = f"{base}/namespaces/{api.namespace}/localqueues"
    queue = api.find(f"{queues}/{name}")
    if queue is None:
        others = sorted(item["metadata"]["name"] for item in api.list(queues))
        there = f"there is {', '.join(others)}" if others else "there is none"
        fix = "correct cluster.queue.name, or have the queue made: manifests/cluster/components/kueue"
        return [bad("queue", f"there is no LocalQueue {name} in namespace {api.namespace}: {there}", fix)]
    of = queue["spec"]["clusterQueue"]
    try:
        cluster_queue = api.find(f"{base}/clusterqueues/{of}")
    except ClusterError as error:
        if error.status != HTTP_FORBIDDEN:
            raise
        return [unseen("queue", f"LocalQueue {name} is there; its ClusterQueue {of} you may not look at", SEES)]
    if cluster_queue is None:
        return [bad("queue", f"LocalQueue {name}: there is no ClusterQueue {of}", "have it made, or use another queue")]
    return [check_kueue(groups, queue, cluster_queue, api.find(f"/api/v1/namespaces/{api.namespace}"))]
