"""Owns reading what doctor's checks of a cluster judge: one request each, and a refused one is a finding too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from opd.spec import AnySpec, ConvertSpec
from opd.spec.cluster import Cluster, RunCluster, parse_cluster
from opdctl.checks import Check
from opdctl.cluster.checks import (
    APPLY_MANIFESTS,
    bad,
    check_gpus,
    check_image,
    check_kuberay,
    check_namespace,
    check_objects,
    check_queue,
    check_quota,
    check_rights,
    check_secret_key,
    good,
)
from opdctl.cluster.client import KubeApi
from opdctl.cluster.errors import HTTP_FORBIDDEN, ClusterError, ClusterUnreachable

T = TypeVar("T")
# What submit, status, logs, cancel and stage do.
RIGHTS = (
    ("create", "ray.io", "rayjobs", ""),
    ("delete", "ray.io", "rayjobs", ""),
    ("create", "", "configmaps", ""),
    ("create", "", "secrets", ""),
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("list", "", "events", ""),
    ("create", "batch", "jobs", ""),
)
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rayjobs.ray.io"


def check_cluster(api: KubeApi, spec: AnySpec | None, tree: Mapping[str, Any] | None) -> list[Check]:
    """Every check of a cluster.

    Args:
        spec: the experiment, None to check for none in particular.
        tree: its `cluster` section.
    """
    try:
        version = api.get("/version")
    except ClusterError as error:
        return [bad("cluster", str(error), error.fix)]
    out = [good("cluster", f"Kubernetes {version.get('gitVersion', '?')}, namespace {api.namespace}")]
    out += _one("kuberay", lambda: check_kuberay(api.find(CRD_PATH)))
    out += _one("namespace", lambda: check_namespace(api.find(f"/api/v1/namespaces/{api.namespace}"), api.namespace))
    out += _one("rights", lambda: check_rights(_missing_rights(api), api.namespace))
    if spec is not None:
        cluster = parse_cluster(tree or {}, spec.kind)
        out += _experiment(api, spec, cluster)
    return out


def _experiment(api: KubeApi, spec: AnySpec, cluster: Cluster) -> list[Check]:
    out = [check_image(cluster)]
    out += _many("claim", lambda: check_objects("claim", _claims(cluster), _found(api, "persistentvolumeclaims", _claims(cluster)),
                                                 "make it, or apply manifests/cluster with components/claims; `opdctl stage` fills it"))  # fmt: skip
    out += _many("secret", lambda: _secrets(api, cluster))
    if cluster.queue is not None:
        queue = _ask(lambda: api.find(api.path("localqueues", cluster.queue.name if cluster.queue else "")))
        out += [check] if (check := check_queue(cluster, queue)) is not None else []
    if isinstance(cluster, RunCluster) and not isinstance(spec, ConvertSpec) and spec.device == "cuda":
        workers, gpus = spec.trainer.nnodes, spec.trainer.gpus_per_node
        out += _one(
            "gpus", lambda: check_gpus(api.list("/api/v1/nodes"), cluster, num_workers=workers, gpus_per_worker=gpus)
        )
        out += _many("quota", lambda: check_quota(api.list(api.path("resourcequotas")), resource=cluster.gpu.resource,
                                                  num_gpus=workers * gpus))  # fmt: skip
    return out


def _claims(cluster: Cluster) -> dict[str, str]:
    claims = {mount.claim: f"cluster.mounts.{index}.claim" for index, mount in enumerate(cluster.mounts)}
    for name, key in (
        (cluster.cache.claim, "cluster.cache.claim"),
        (cluster.checkpoints.claim, "cluster.checkpoints.claim"),
    ):
        if name is not None:
            claims[name] = key
    if isinstance(cluster, RunCluster) and cluster.tool_database.claim is not None:
        claims[cluster.tool_database.claim] = "cluster.toolDatabase.claim"
    return claims


def _secrets(api: KubeApi, cluster: Cluster) -> list[Check]:
    """Secrets by reference; of the store's, every key becomes a variable, so only its being there counts."""
    keyed = {
        "cluster.secrets.huggingFace": cluster.secrets.hugging_face,
        "cluster.secrets.wandb": cluster.secrets.wandb,
        "cluster.secrets.mlflow": cluster.secrets.mlflow,
    }
    wanted = {item.secret: path for path, item in keyed.items() if item is not None}
    if cluster.secrets.store is not None:
        wanted[cluster.secrets.store] = "cluster.secrets.store"
    if cluster.auth.secret is not None:
        wanted[cluster.auth.secret] = "cluster.auth.secret"
    wanted |= {name: f"cluster.image.pullSecrets.{index}" for index, name in enumerate(cluster.image.pull_secrets)}
    found = _found(api, "secrets", wanted)
    out = check_objects("secret", wanted, found, "make it: kubectl create secret generic NAME --from-literal=KEY=...")
    for path, item in keyed.items():
        tree = found.get(item.secret) if item is not None else None
        if item is not None and tree is not None:
            out.append(check_secret_key(item.secret, item.key, path, tree))
    return out


def _found(api: KubeApi, kind: str, names: Mapping[str, str]) -> dict[str, dict[str, Any] | None]:
    return {name: api.find(api.path(kind, name)) for name in names}


def _missing_rights(api: KubeApi) -> list[str]:
    missing = []
    for verb, group, resource, part in RIGHTS:
        attributes = {
            "namespace": api.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": part,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not answer.get("status", {}).get("allowed"):
            missing.append(f"{verb} {resource}{'/' + part if part else ''}")
    return missing


def _one(name: str, look: Callable[[], Check]) -> list[Check]:
    return _many(name, lambda: [look()])


def _many(name: str, look: Callable[[], list[Check]]) -> list[Check]:
    """The checks, or the one finding that this cannot be looked at."""
    try:
        return look()
    except ClusterUnreachable as error:
        return [bad(name, str(error), error.fix)]
    except ClusterError as error:
        fix = (
            f"{APPLY_MANIFESTS}: the ClusterRole opd-user-view allows it"
            if error.status == HTTP_FORBIDDEN
            else error.fix
        )
        return [bad(name, str(error), fix)]


def _ask(look: Callable[[], T]) -> T | ClusterError:
    try:
        return look()
    except ClusterError as error:
        return error
