"""Owns doctor's look at a cluster: pure checks over what was read there, each with what is wrong and how to mend it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opd.spec.cluster import Cluster, RunCluster
from opdctl.checks import Check
from opdctl.cluster.errors import ClusterError

# The field of the RayJob CRD that came with KubeRay 1.6: the CRD carries no version.
NEWEST_FIELD = "preRunningDeadlineSeconds"
MIN_KUBERAY = "1.6"
INSTALL_KUBERAY = "install the KubeRay operator 1.6 or newer: manifests/cluster/operator-values.yaml has the command"
APPLY_MANIFESTS = "an admin applies manifests/cluster"

Tree = Mapping[str, Any]


def good(name: str, message: str) -> Check:
    return Check(name=name, is_ok=True, message=message)


def bad(name: str, message: str, fix: str) -> Check:
    return Check(name=name, is_ok=False, message=message, fix=fix)


def check_kuberay(crd: Tree | None) -> Check:
    """Whether KubeRay is there and new enough, by its CRD."""
    if crd is None:
        return bad("kuberay", "there is no CRD rayjobs.ray.io: KubeRay is not installed", INSTALL_KUBERAY)
    version = next((item for item in crd["spec"]["versions"] if item["name"] == "v1"), None)
    fields = ((version or {}).get("schema", {}).get("openAPIV3Schema", {}).get("properties", {}).get("spec", {})).get(
        "properties", {}
    )
    if NEWEST_FIELD not in fields:
        return bad(
            "kuberay",
            f"its RayJob has no field {NEWEST_FIELD}: older than {MIN_KUBERAY}",
            f"{INSTALL_KUBERAY}; CRDs are replaced by `kubectl replace`, Helm does not upgrade them",
        )
    return good("kuberay", f"RayJob v1 with {NEWEST_FIELD}: {MIN_KUBERAY} or newer")


def check_rights(missing: Sequence[str], namespace: str) -> Check:
    """Whether this person may do what the commands do; `missing` are `verb resource` pairs."""
    if missing:
        return bad(
            "rights",
            f"not allowed in namespace {namespace}: {', '.join(missing)}",
            f"{APPLY_MANIFESTS} and adds you to the group opd-users",
        )
    return good("rights", f"may install, follow and delete runs in namespace {namespace}")


def check_namespace(tree: Tree | None, name: str) -> Check:
    """Whether the namespace is there, and what it enforces."""
    if tree is None:
        return bad("namespace", f"there is no namespace {name}", f"{APPLY_MANIFESTS}, or name another with --namespace")
    labels = tree.get("metadata", {}).get("labels", {})
    level = labels.get("pod-security.kubernetes.io/enforce", "none")
    policy = (
        "" if labels.get("opd/runs") == "true" else "; the suspend policy does not select it (label opd/runs: true)"
    )
    return good("namespace", f"{name}, Pod Security {level}{policy}")


def check_objects(kind: str, wanted: Mapping[str, str], found: Mapping[str, Tree | None], fix: str) -> list[Check]:
    """Whether existing objects that the spec names are there.

    Args:
        wanted: name -> the key of the spec that names it.
        found: name -> the object, None where there is none.
    """
    out = []
    for name, key in wanted.items():
        tree = found.get(name)
        if tree is None:
            out.append(bad(kind, f"{kind} {name} ({key}) is not in this namespace", fix))
        elif kind == "claim" and tree.get("status", {}).get("phase") != "Bound":
            phase = tree.get("status", {}).get("phase", "?")
            why = "its StorageClass binds it with the first pod, or has no volume for it"
            out.append(bad(kind, f"claim {name} ({key}) is {phase}", why + ": `kubectl describe pvc` says which"))
        else:
            out.append(good(kind, f"{name} ({key})"))
    return out


def check_secret_key(name: str, key: str, path: str, secret: Tree) -> Check:
    """Whether a Secret holds the key that the spec names; never its value."""
    if key in (secret.get("data") or {}):
        return good("secret", f"{name} has the key {key} ({path})")
    return bad("secret", f"secret {name} has no key {key} ({path})", f"add it: kubectl edit secret {name}")


def check_gpus(nodes: Sequence[Tree], cluster: RunCluster, *, num_workers: int, gpus_per_worker: int) -> Check:
    """Whether enough nodes could hold a worker each, if they were empty."""
    resource, kind = cluster.gpu.resource, cluster.gpu.type
    sizes: list[int] = []
    types: set[str] = set()
    for node in nodes:
        labels = node.get("metadata", {}).get("labels", {})
        types |= {labels[cluster.gpu.type_label]} if cluster.gpu.type_label in labels else set()
        if kind is not None and labels.get(cluster.gpu.type_label) != kind:
            continue
        sizes.append(int(node.get("status", {}).get("allocatable", {}).get(resource, 0)))
    num_places = sum(size // gpus_per_worker for size in sizes)
    if kind is not None and kind not in types:
        there = f"there are {', '.join(sorted(types))}" if types else "no node has that label at all"
        fix = "correct cluster.gpu.type (or typeLabel), or remove it for any GPU"
        return bad("gpus", f"no node has the label {cluster.gpu.type_label}={kind}: {there}", fix)
    what = f"{num_workers} workers of {gpus_per_worker} {resource}" + (f" of type {kind}" if kind else "")
    if num_places < num_workers:
        have = f"{sum(size > 0 for size in sizes)} nodes with up to {max(sizes, default=0)} each"
        return bad(
            "gpus",
            f"{what} do not fit: {have}",
            "lower trainer.nnodes or trainer.gpus_per_node, or correct cluster.gpu (resource, type, typeLabel)",
        )
    return good("gpus", f"{what}: room for {num_places} on empty nodes")


def check_quota(quotas: Sequence[Tree], *, resource: str, num_gpus: int) -> list[Check]:
    """Whether the run's GPUs are left of each quota that counts them."""
    out = []
    for quota in quotas:
        name = quota["metadata"]["name"]
        hard, used = (quota.get("status", {}).get(part, {}).get(f"requests.{resource}") for part in ("hard", "used"))
        if hard is None:
            continue
        left = int(hard) - int(used or 0)
        text = f"{name}: {left} of {hard} {resource} left, the run needs {num_gpus}"
        fix = "wait for other runs to end, ask for less, or have the quota raised"
        out.append(good("quota", text) if left >= num_gpus else bad("quota", text, fix))
    return out


def check_queue(cluster: Cluster, answer: Tree | ClusterError | None) -> Check | None:
    """Whether the queue that the spec names is there; Volcano's queues are not namespaced and not looked at."""
    if cluster.queue is None or cluster.queue.manager != "kueue":
        return None
    name = cluster.queue.name
    if answer is None or isinstance(answer, ClusterError):
        why = f": {answer}" if answer is not None else ""
        return bad("queue", f"there is no LocalQueue {name} here{why}", "apply manifests/cluster/components/kueue")
    return good("queue", f"LocalQueue {name}")


def check_image(cluster: Cluster) -> Check:
    """Whether the image is named; only the nodes can tell whether it can be pulled."""
    if cluster.image.ref is None:
        fix = "`images/build.sh trainer --push REGISTRY` prints the reference; set cluster.image.ref or use --image"
        return bad("image", "cluster.image.ref is not set", fix)
    return good("image", cluster.image.ref)
