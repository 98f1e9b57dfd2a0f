"""A rendered run: its pods by group, the objects that they name, and paths that no volume holds."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opd.config import FileSpec
from opd.config.kinds import AnySpec, ConvertSpec, PipelineSpec
from opd.config.pipeline import stages_of
from opd.inputs import Inputs, is_module
from opd.inputs.models import is_hub_id
from opdctl.doctor.check import Check, warning
from opdctl.kube.client import ROLE_LABEL
from opdctl.kube.dry_run import pods_of, rendered_objects

Tree = Mapping[str, Any]
_FIX = (
    "name a URL (s3://...), or a path below cluster.mounts[].path of a claim that has it (manifests/stage.yaml fills one); "
    "no fix is needed if the image itself has it"
)


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


def check_held(spec: FileSpec, text: str) -> list[Check]:
    """Return a warning for each key with a path that no volume holds; URLs, bundled names, hub ids and modules pass.

    Args:
        text: the rendered chart.
    """
    objects = rendered_objects(text)
    group = groups_of(objects)[0]  # the chart gives head and workers the same volumes
    container = group.spec["containers"][0]  # Ray's own
    folder = container.get("workingDir", "/")
    made = {tree["metadata"]["name"] for tree in objects if tree["kind"] == "PersistentVolumeClaim"}
    sources = {volume["name"]: volume for volume in group.spec.get("volumes") or ()}
    # An init container has filled a volume that Ray's container may only read, such as a fetched tool database.
    mounts = {
        item["mountPath"]: {} if item.get("readOnly") else sources.get(item["name"], {})
        for item in container.get("volumeMounts") or ()
    }
    filled = [path for path, source in mounts.items() if not {"emptyDir", "ephemeral"} & source.keys()]
    there = [path for path in filled if mounts[path].get("persistentVolumeClaim", {}).get("claimName") not in made]
    out = []
    for under, key, paths in _paths(spec):
        outside = [
            path
            for path in paths
            if not _is_below(posixpath.join(folder, path), filled if path.startswith("/") else there)
        ]
        if outside:
            more = f" and {len(outside) - 1} more" if outside[1:] else ""
            why = "" if outside[0].startswith("/") else f"; pods look for it in {folder}, the run's new volume"
            message = f"{under}{key} {outside[0]}{more}: no volume of the pods holds it{why}"
            out.append(warning(key.partition(".")[0], message, _FIX))
    return out


def _paths(spec: FileSpec) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield (stage, key, paths within the pods) of everything that each run reads."""
    runs: list[tuple[str, AnySpec]] = (
        [(f"stages.{stage.name}.", stage.spec) for stage in stages_of(spec)]
        if isinstance(spec, PipelineSpec)
        else [("", spec)]
    )
    for under, run in runs:
        if isinstance(run, ConvertSpec):
            continue
        inputs = Inputs.of(run)
        for key, path in inputs.models:
            yield under, key, [] if "://" in path or is_hub_id(path) else [path]
        for data in inputs.data:
            yield under, data.key, [path for path in data.files if "://" not in path]
        for key, path in inputs.places:
            yield under, key, [] if "://" in path or is_module(path) else [path]


def _is_below(path: str, folders: Sequence[str]) -> bool:
    whole = posixpath.normpath(path)
    normal = [posixpath.normpath(folder) for folder in folders]
    return any(whole == folder or whole.startswith(f"{folder.rstrip('/')}/") for folder in normal)
