"""What a cluster offers that a site file names: types of GPU, storage classes, queues; for `opdctl init`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opd.config.cluster.pods import Gpu
from opdctl.doctor.check_objects import DEFAULT_CLASS
from opdctl.doctor.nodes import needed_taints, read_nodes
from opdctl.doctor.queues import KUEUE
from opdctl.doctor.volumes import CLASSES
from opdctl.kube.client import KubeApi
from opdctl.kube.errors import ClusterError, ClusterUnreachable

_GPU = Gpu()


@dataclass(frozen=True, kw_only=True)
class GpuType:
    """Nodes with one type of GPU: how many GPUs the fullest has, and what their taints ask of pods."""

    name: str
    num_gpus: int
    tolerations: list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What may be chosen from; empty where the cluster was not asked, or does not let this person look."""

    gpus: list[GpuType] = field(default_factory=list)
    storage_classes: list[str] = field(default_factory=list)
    """The cluster's default one first."""
    queues: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What could not be looked at, and why."""


def look_at_offers(api: KubeApi) -> Offers:
    """Reads nodes, storage classes and Kueue's queues of the namespace.

    Raises:
        ClusterUnreachable: the API server does not answer.
    """
    remarks: list[str] = []

    def read(path: str) -> list[dict[str, Any]]:
        try:
            return api.list(path)
        except ClusterUnreachable:
            raise
        except ClusterError as error:
            if error.status != 404:
                remarks.append(str(error))
            return []

    classes = read(CLASSES)
    classes.sort(key=lambda item: (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) != "true")
    group = api.find(f"/apis/{KUEUE}")
    base = f"/apis/{group['preferredVersion']['groupVersion']}/namespaces/{api.namespace}" if group else ""
    return Offers(
        gpus=gpu_types(read("/api/v1/nodes")),
        storage_classes=[item["metadata"]["name"] for item in classes],
        queues=[item["metadata"]["name"] for item in (read(f"{base}/localqueues") if base else [])],
        remarks=remarks,
    )


def gpu_types(nodes: list[dict[str, Any]]) -> list[GpuType]:
    """The types of GPU among nodes, those with most GPUs on a node first."""
    found: dict[str, GpuType] = {}
    for node in read_nodes(nodes, []):
        name, num_gpus = node.labels.get(_GPU.type_label), int(node.allocatable.get(_GPU.resource, 0))
        if name is None or not num_gpus:
            continue
        known = found.get(name) or GpuType(name=name, num_gpus=0, tolerations=[])
        wanted = [
            {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]} for taint in needed_taints(node)
        ]
        found[name] = GpuType(
            name=name,
            num_gpus=max(known.num_gpus, num_gpus),
            tolerations=known.tolerations + [item for item in wanted if item not in known.tolerations],
        )
    return sorted(found.values(), key=lambda item: -item.num_gpus)
