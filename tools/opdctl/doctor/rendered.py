"""A rendered run: its pods by group, and the objects that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opdctl.kube.client import ROLE_LABEL
from opdctl.kube.dry_run import pods_of

Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Equal pods of a run; `pod` is one of them, with metadata and spec."""

    role: str
    count: int
    pod: Tree

    @property
    def spec(self) -> Any:
        return self.pod["spec"]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An object that must exist: `keys` of a Secret or ConfigMap; `is_read_only` of a claim."""

    kind: str
    name: str
    keys: frozenset[str] = frozenset()
    is_read_only: bool = False


def groups_of(objects: Sequence[Tree]) -> list[Group]:
    """Return head, workers and submitter of the RayJob among the objects."""
    found = []
    for job in (tree for tree in objects if tree["kind"] == "RayJob"):
        cluster = job["spec"]["rayClusterSpec"]
        counts = {group["groupName"]: group.get("replicas", 1) for group in cluster.get("workerGroupSpecs", ())}
        for pod in pods_of(job):
            role = pod["metadata"]["labels"][ROLE_LABEL]
            found.append(Group(role=role, count=counts.get(role, 1), pod=pod))
    return found


def references(spec: Tree) -> Iterator[Reference]:
    """Yield the objects that a pod names, without optional objects."""
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        for variable in container.get("env") or ():
            for key, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
                source = (variable.get("valueFrom") or {}).get(key)
                if source and not source.get("optional"):
                    yield Reference(kind=kind, name=source["name"], keys=frozenset([source["key"]]))
        for item in container.get("envFrom") or ():
            for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
                if key in item and not item[key].get("optional"):
                    yield Reference(kind=kind, name=item[key]["name"])
    for volume in spec.get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            yield Reference(kind="Claim", name=claim["claimName"], is_read_only=bool(claim.get("readOnly")))
        for key, kind, name in (("secret", "Secret", "secretName"), ("configMap", "ConfigMap", "name")):
            source = volume.get(key)
            if source and not source.get("optional"):
                keys = frozenset(item["key"] for item in source.get("items") or ())
                yield Reference(kind=kind, name=source[name], keys=keys)
    for secret in spec.get("imagePullSecrets") or ():
        yield Reference(kind="PullSecret", name=secret["name"])
    if account := spec.get("serviceAccountName"):
        yield Reference(kind="ServiceAccount", name=account)


def wanted(groups: Sequence[Group], objects: Sequence[Tree]) -> dict[tuple[str, str], Reference]:
    """Return what all pods together need, by kind and name, without the objects that the run brings itself."""
    own = {(tree["kind"].replace("PersistentVolumeClaim", "Claim"), tree["metadata"]["name"]) for tree in objects}
    found: dict[tuple[str, str], Reference] = {}
    for item in (item for group in groups for item in references(group.spec)):
        at = (item.kind, item.name)
        if at not in own:
            before = found.get(at, item)
            keys, is_read_only = before.keys | item.keys, before.is_read_only and item.is_read_only
            found[at] = Reference(kind=item.kind, name=item.name, keys=keys, is_read_only=is_read_only)
    return found


def where(tree: Any, word: str, path: str = "cluster") -> str:
    """Return the dotted path below `tree` whose value is this word; empty without any."""
    if tree == word:
        return path
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return next((found for key, value in items if (found := where(value, word, f"{path}.{key}"))), "")
