"""Preconditions in a cluster: KubeRay, the namespace, rights, and the objects that a rendered run names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from opd.config import dump_spec
from opd.config.cluster import Cluster, parse_cluster
from opd.store.access import S3_PROTOCOLS, address_of
from opdctl.chart.values import Experiment
from opdctl.doctor.check import Check, bad, good, unseen, warning
from opdctl.doctor.checks import (
    APPLY_MANIFESTS,
    OPERATOR,
    check_claim,
    check_class,
    check_kuberay,
    check_namespace,
    check_operator,
    check_reference,
    check_rights,
    check_store_keys,
    mend,
)
from opdctl.doctor.rendered import Reference, groups_of, wanted, where
from opdctl.kube.client import CLASSES, KUEUE, KubeApi, Tree
from opdctl.kube.dry_run import dry_run, is_over_quota, rendered_objects
from opdctl.kube.errors import HTTP_FORBIDDEN, ClusterError, ClusterUnreachable
from opdctl.kube.waiting import explain

SEES = f"{APPLY_MANIFESTS}: the Role opd-user and the ClusterRole opd-user-view allow it"
# (verb, group, resource, subresource) of submit, status, logs and cancel.
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
DEPLOYMENTS = "/apis/apps/v1/deployments"
QUEUE_LABEL = f"{KUEUE}/queue-name"
PATHS = {"Secret": "secrets", "PullSecret": "secrets", "ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts",
         "Claim": "persistentvolumeclaims"}  # fmt: skip


class OneLook(KubeApi):
    """A cluster of which every address is read once: all checks see the same objects."""

    def __init__(self, api: KubeApi) -> None:
        super().__init__(api.client, namespace=api.namespace, context=api.context)
        self._seen: dict[tuple[Any, ...], Tree | ClusterError] = {}

    def get(self, path: str, **query: str | int) -> Tree:
        key = (path, *query.items())
        if key not in self._seen:
            try:
                self._seen[key] = super().get(path, **query)
            except ClusterError as error:
                self._seen[key] = error
        found = self._seen[key]
        if isinstance(found, ClusterError):
            raise found
        return found


def read(name: str, checks: Callable[[], list[Check]]) -> list[Check]:
    """Make checks; return one line with the reason if nothing can be read."""
    try:
        return checks()
    except ClusterError as error:
        if error.status == HTTP_FORBIDDEN and not isinstance(error, ClusterUnreachable):
            return [unseen(name, str(error), SEES)]
        return [bad(name, str(error), error.fix)]


def check_cluster(api: KubeApi, item: Experiment | None, text: str) -> list[Check]:
    """Make every check of a cluster.

    Args:
        item: the experiment; None means no experiment in particular.
        text: its rendered chart; empty where the chart rejects it.
    """
    api = OneLook(api)
    try:
        version = api.get("/version")
    except ClusterError as error:
        return [bad("cluster", str(error), error.fix)]
    out = [good("cluster", f"Kubernetes {version.get('gitVersion', '?')}, namespace {api.namespace}")]
    out += read("kuberay", lambda: [check_kuberay(api.find(CRD_PATH))])
    here = read("namespace", lambda: [check_namespace(api.find(f"/api/v1/namespaces/{api.namespace}"), api.namespace)])
    out += here + read("rights", lambda: [check_rights(_missing_rights(api), api.namespace)])
    if item is None or not text:
        return out
    if here[0].state == "MISSING":
        return [*out, unseen("run", "the objects that the run needs: their namespace does not exist", here[0].fix)]
    return [*out, *Examination(api, item, text).checks()]


def _missing_rights(api: KubeApi) -> list[str]:
    missing = []
    for verb, group, resource, part in RIGHTS:
        words = {"namespace": api.namespace, "verb": verb, "group": group, "resource": resource, "subresource": part}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": words},
        }
        answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not answer.get("status", {}).get("allowed"):
            missing.append(f"{verb} {resource}{'/' + part if part else ''}")
    return missing


class Examination:
    """The checks of one rendered run in one namespace."""

    def __init__(self, api: KubeApi, item: Experiment, text: str):
        self.api = api
        self.tree = item.values.get("cluster") or {}
        self.cluster: Cluster = parse_cluster(self.tree)
        at = address_of(dump_spec(item.spec))
        self.is_on_s3 = at is not None and at.url.partition("://")[0] in S3_PROTOCOLS
        self.objects = rendered_objects(text)
        self.job = next(tree for tree in self.objects if tree["kind"] == "RayJob")
        self.groups = groups_of(self.objects)

    def checks(self) -> list[Check]:
        """Make all checks; a check that may not read does not stop the others."""
        parts = (("operator", self._operator), ("admission", self._admission))
        return [*(check for name, look in parts for check in read(name, look)), *self.named()]

    def named(self) -> list[Check]:
        """Check the objects that the rendered run names: queue, storage class, Secrets, claims, accounts."""
        parts: Sequence[tuple[str, Callable[[], list[Check]]]] = (
            ("queue", self._queue),
            ("storage", self._storage),
            *((item.kind.removeprefix("Pull").lower(), partial(self._reference, item))
              for item in wanted(self.groups, self.objects).values()),
        )  # fmt: skip
        return [check for name, look in parts for check in read(name, look)]

    def _operator(self) -> list[Check]:
        found = self.api.list(DEPLOYMENTS, fieldSelector=f"metadata.name={OPERATOR}")
        expected_in = self.cluster.network_policy.operator_namespace
        return [check_operator(found, namespace=self.api.namespace, expected_in=expected_in)]

    def _admission(self) -> list[Check]:
        tries = [(group.role, dict(group.pod)) for group in self.groups]
        tries += [(f"{tree['kind']} {tree['metadata']['name']}", tree) for tree in self.objects]
        found = [(who, error) for who, tree in tries for error in dry_run(self.api, [tree])]
        waiting = [(who, error) for who, error in found if is_over_quota(error)]
        fix = "the run waits: for other runs to end, or a larger quota"
        out = [warning("quota", f"{who}: {explain(str(error))}", fix) for who, error in waiting]
        rejected = [item for item in found if item not in waiting]
        if not rejected:
            taken = len(tries) - len(out)
            return [*out, good("admission", f"the API server takes {taken} of {len(tries)} objects and pods")]
        return out + [
            bad("admission", f"{who}: {error}", mend(who, str(error)) or error.fix) for who, error in rejected
        ]

    def _queue(self) -> list[Check]:
        """Check that the Kueue queue which labels the RayJob exists; Volcano's queues are not read."""
        name = self.job["metadata"]["labels"].get(QUEUE_LABEL)
        if name is None:
            return []
        group = self.api.find(f"/apis/{KUEUE}")
        if group is None:
            fix = "an admin installs it, with its RayJob integration, or drop cluster.queue"
            return [bad("queue", "Kueue is not installed", fix)]
        queues = f"/apis/{group['preferredVersion']['groupVersion']}/namespaces/{self.api.namespace}/localqueues"
        if self.api.find(f"{queues}/{name}") is None:
            others = sorted(item["metadata"]["name"] for item in self.api.list(queues))
            there = f"there is {', '.join(others)}" if others else "there is none"
            fix = "correct cluster.queue.name, or have the queue made: manifests/cluster/components/kueue"
            return [bad("queue", f"there is no LocalQueue {name} in namespace {self.api.namespace}: {there}", fix)]
        return [good("queue", f"LocalQueue {name}")]

    def _is_kept(self, claim: Tree) -> bool:
        return self.api.find(self.api.path("persistentvolumeclaims", claim["metadata"]["name"])) is not None

    def _storage(self) -> list[Check]:
        claims = [tree for tree in self.objects if tree["kind"] == "PersistentVolumeClaim" and not self._is_kept(tree)]
        classes = self.api.list(CLASSES) if claims else []
        return [
            check_class(tree, classes, path=self._where(tree["spec"].get("storageClassName", ""))) for tree in claims
        ]

    def _where(self, name: str) -> str:
        return where(self.tree, name) if name else ""

    def _reference(self, item: Reference) -> list[Check]:
        kind, path = PATHS[item.kind], self._where(item.name)
        tree = self.api.find(self.api.path(kind, item.name))
        if tree is None:
            is_claim = item.kind == "Claim"
            others = [one["metadata"]["name"] for one in self.api.list(self.api.path(kind))] if is_claim else []
            return [check_reference(item, None, namespace=self.api.namespace, path=path, others=others)]
        if item.kind == "Claim":
            num_pods = sum(group.count for group in self.groups if ("Claim", item.name) in wanted([group], []))
            return [check_claim(item, tree, path=path, num_pods=num_pods)]
        out = [check_reference(item, tree, namespace=self.api.namespace, path=path)]
        if item.name == self.cluster.secrets.store and self.is_on_s3:
            out += check_store_keys(item.name, tree, path=path)
        return out
