"""Where a pod's volumes can be mounted: the nodes that a bound volume, or the StorageClass of one still to be made, allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from opdctl.doctor.check_objects import is_default
from opdctl.doctor.looking import seen
from opdctl.doctor.placement import Mount
from opdctl.doctor.selectors import Tree
from opdctl.kube.client import KubeApi

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
# Labels of a volume that a node must share, from before volumes had node affinity; several values stand apart by `__`.
_LABELS = tuple(f"{prefix}/{area}" for prefix in ("topology.kubernetes.io", "failure-domain.beta.kubernetes.io") for area in ("zone", "region"))  # fmt: skip


def mounts_of(api: KubeApi, spec: Tree, objects: Sequence[Tree]) -> list[Mount]:
    """What a pod's claims say of nodes, those that the run brings itself among them."""
    own = {tree["metadata"]["name"]: tree for tree in objects if tree["kind"] == "PersistentVolumeClaim"}
    found = []
    for volume in spec.get("volumes") or ():
        if "ephemeral" in volume:
            found.append(_mount(api, volume["name"], volume["ephemeral"]["volumeClaimTemplate"]["spec"]))
        if source := volume.get("persistentVolumeClaim"):
            claim = seen(partial(api.find, api.path("persistentvolumeclaims", source["claimName"])))
            claim = claim or own.get(source["claimName"])
            found += [_mount(api, source["claimName"], claim["spec"])] if claim else []
    return found


def _mount(api: KubeApi, name: str, spec: Tree) -> Mount:
    if "volumeName" in spec:
        volume = seen(lambda: api.find(f"{VOLUMES}/{spec['volumeName']}") or {})
        return Mount(claim=name, by="the volume", terms=None if volume is None else tuple(_of_volume(volume)))
    classes = seen(partial(api.list, CLASSES))
    if classes is None:
        return Mount(claim=name, by="the StorageClass", terms=None)
    of = spec.get("storageClassName") or next((one["metadata"]["name"] for one in classes if is_default(one)), "")
    terms = (term for one in classes if one["metadata"]["name"] == of for term in _of_class(one))
    return Mount(claim=name, by=f"StorageClass {of}", terms=tuple(terms))


def _of_volume(volume: Tree) -> Iterator[Tree]:
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    labels: Mapping[str, Any] = (volume.get("metadata") or {}).get("labels") or {}
    old = [{"key": key, "operator": "In", "values": labels[key].split("__")} for key in _LABELS if key in labels]
    terms = required.get("nodeSelectorTerms") or ([{}] if old else [])
    for term in terms:
        yield {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *old]}


def _of_class(storage_class: Tree) -> Iterator[Tree]:
    for term in storage_class.get("allowedTopologies") or ():
        yield {"matchExpressions": [{**item, "operator": "In"} for item in term.get("matchLabelExpressions") or ()]}
