"""Reads what doctor's checks of a cluster judge. What may not be read is not checked, and said so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from opd.runs.access import S3_PROTOCOLS, StoreAddress, address_of
from opd.spec import dump_spec
from opd.spec.cluster import Cluster, RunCluster, parse_cluster
from opdctl.checks import Check, bad, good, service_of, unseen, warning
from opdctl.cluster.check_objects import check_claim, check_class, check_pull_secret, check_reference, check_store_keys
from opdctl.cluster.check_placement import check_placement
from opdctl.cluster.check_shares import check_kueue, check_quota
from opdctl.cluster.checks import (
    APPLY_MANIFESTS,
    OPERATOR,
    check_admission,
    check_kuberay,
    check_namespace,
    check_operator,
    check_rights,
)
from opdctl.cluster.client import KubeApi
from opdctl.cluster.dry_run import dry_run, is_over_quota, rendered_objects
from opdctl.cluster.egress import Server, is_reachable
from opdctl.cluster.errors import HTTP_FORBIDDEN, HTTP_NOT_FOUND, ClusterError, ClusterUnreachable
from opdctl.cluster.nodes import Node, read_nodes
from opdctl.cluster.placement import Placement, place
from opdctl.cluster.rendered import Reference, groups_of, wanted, where
from opdctl.values import Experiment

Tree = dict[str, Any]
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
DEPLOYMENTS = "/apis/apps/v1/deployments"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
AUTOSCALER = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
KUEUE = "kueue.x-k8s.io"
QUEUE_LABEL = f"{KUEUE}/queue-name"
SEES = f"{APPLY_MANIFESTS}: the Role opd-user and the ClusterRole opd-user-view allow it"
PATHS = {"Secret": "secrets", "PullSecret": "secrets", "ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts",
         "Claim": "persistentvolumeclaims"}  # fmt: skip


def check_cluster(api: KubeApi, item: Experiment | None, text: str) -> list[Check]:
    """Every check of a cluster.

    Args:
        item: the experiment, None to check for none in particular.
        text: what its chart renders, empty where it cannot.
    """
    try:
        version = api.get("/version")
    except ClusterError as error:
        return [bad("cluster", str(error), error.fix)]
    out = [good("cluster", f"Kubernetes {version.get('gitVersion', '?')}, namespace {api.namespace}")]
    out += _look("kuberay", lambda: [check_kuberay(api.find(CRD_PATH))])
    out += _look("namespace", lambda: [check_namespace(_namespace(api), api.namespace)])
    out += _look("rights", lambda: [check_rights(_missing_rights(api), api.namespace)])
    if item is not None and text:
        out += Examination(api, item, text).checks()
    return out


class Examination:
    """The checks of one rendered run in one namespace."""

    def __init__(self, api: KubeApi, item: Experiment, text: str):
        self.api = api
        self.tree = item.values.get("cluster") or {}
        self.cluster: Cluster = parse_cluster(self.tree, item.spec.kind)
        self.store = address_of(dump_spec(item.spec))
        self.objects = rendered_objects(text)
        self.groups = groups_of(self.objects, api.namespace)
        self.placements: list[Placement] = []

    def checks(self) -> list[Check]:
        """All of them, each on its own: what one may not see does not keep the others."""
        parts: Sequence[tuple[str, Callable[[], list[Check]]]] = (
            ("operator", self._operator),
            ("admission", self._admission),
            ("placement", self._placement),
            ("quota", self._quota),
            ("queue", self._queue),
            ("storage", self._storage),
            *((item.kind.removeprefix("Pull").lower(), lambda item=item: self._reference(item))  # type: ignore[misc]
              for item in wanted(self.groups, self.objects).values()),
            ("egress", self._egress),
        )  # fmt: skip
        return [check for name, look in parts for check in _look(name, look)]

    def _operator(self) -> list[Check]:
        found = self.api.list(DEPLOYMENTS, fieldSelector=f"metadata.name={OPERATOR}")
        expected_in = self.cluster.network_policy.operator_namespace
        return check_operator(found, namespace=self.api.namespace, expected_in=expected_in)

    def _admission(self) -> list[Check]:
        tries = [(group.role, group.pod) for group in self.groups]
        tries += [(f"{tree['kind']} {tree['metadata']['name']}", tree) for tree in self.objects]
        refused = [(who, str(error), error.fix) for who, tree in tries for error in dry_run(self.api, [tree])
                   if not is_over_quota(error)]  # fmt: skip
        if not refused:
            return [good("admission", f"the API server takes all {len(tries)} objects and pods")]
        try:
            ranges = [tree["metadata"]["name"] for tree in self.api.list(self.api.path("limitranges"))]
        except ClusterError:
            ranges = []
        return check_admission(refused, limit_ranges=ranges)

    def _placement(self) -> list[Check]:
        out = []
        try:
            pods = self.api.list("/api/v1/pods")
        except ClusterError as error:
            if error.status != HTTP_FORBIDDEN:
                raise
            out = [unseen("placement", "what other namespaces' pods hold of the nodes: you may not list them", "ask an admin what is free")]
            pods = self.api.list(self.api.path("pods"))
        nodes = read_nodes(self.api.list("/api/v1/nodes"), pods)
        self.placements = place(self.groups, nodes)
        autoscaler = "" if all(item.is_whole for item in self.placements) else self._autoscaler(nodes)
        gpu = self.cluster.gpu.model_dump(by_alias=True) if isinstance(self.cluster, RunCluster) else None
        return [*(check_placement(item, nodes, gpu, autoscaler=autoscaler) for item in self.placements), *out]

    def _autoscaler(self, nodes: Sequence[Node]) -> str:
        """What may add nodes, as far as this person can see it."""
        if pools := _seen(lambda: self.api.list(NODE_POOLS)):
            return f"Karpenter (NodePool {', '.join(pool['metadata']['name'] for pool in pools)})"
        if any(label.startswith("karpenter.sh/") for node in nodes for label in node.labels):
            return "Karpenter"
        return "the cluster's autoscaler" if _seen(lambda: self.api.find(AUTOSCALER)) else ""

    def _quota(self) -> list[Check]:
        brought = [tree for tree in self.objects if tree["kind"] != "PersistentVolumeClaim" or not self._is_kept(tree)]
        quotas = self.api.list(self.api.path("resourcequotas"))
        return [check for quota in quotas for check in check_quota(quota, self.groups, brought)]

    def _is_kept(self, claim: Tree) -> bool:
        return self.api.find(self.api.path("persistentvolumeclaims", claim["metadata"]["name"])) is not None

    def _queue(self) -> list[Check]:
        job = next(tree for tree in self.objects if tree["kind"] == "RayJob")
        name = job["metadata"]["labels"].get(QUEUE_LABEL)
        if name is None:
            return []
        group = self.api.find(f"/apis/{KUEUE}")
        if group is None:
            return [bad("queue", "Kueue is not installed", "an admin installs it, with its RayJob integration, or drop cluster.queue")]
        base = f"/apis/{group['preferredVersion']['groupVersion']}"
        queues = f"{base}/namespaces/{self.api.namespace}/localqueues"
        queue = self.api.find(f"{queues}/{name}")
        if queue is None:
            others = sorted(item["metadata"]["name"] for item in self.api.list(queues))
            there = f"there is {', '.join(others)}" if others else "there is none"
            fix = "correct cluster.queue.name, or have the queue made: manifests/cluster/components/kueue"
            return [bad("queue", f"there is no LocalQueue {name} in namespace {self.api.namespace}: {there}", fix)]
        of = queue["spec"]["clusterQueue"]
        try:
            cluster_queue = self.api.find(f"{base}/clusterqueues/{of}")
        except ClusterError as error:
            if error.status != HTTP_FORBIDDEN:
                raise
            return [unseen("queue", f"LocalQueue {name} is there; its ClusterQueue {of} you may not look at", SEES)]
        if cluster_queue is None:
            return [bad("queue", f"LocalQueue {name}: there is no ClusterQueue {of}", "have it made, or use another queue")]
        return [check_kueue(self.groups, queue, cluster_queue, _namespace(self.api))]

    def _storage(self) -> list[Check]:
        claims = [tree for tree in self.objects if tree["kind"] == "PersistentVolumeClaim" and not self._is_kept(tree)]
        classes = self.api.list(CLASSES) if claims else []
        return [check_class(tree, classes, path=self._where(tree["spec"].get("storageClassName", ""))) for tree in claims]

    def _where(self, name: str) -> str:
        return where(self.tree, name) if name else ""

    def _reference(self, item: Reference) -> list[Check]:
        kind, path = PATHS[item.kind], self._where(item.name)
        tree = self.api.find(self.api.path(kind, item.name))
        if tree is None:
            others = [one["metadata"]["name"] for one in self.api.list(self.api.path(kind))] if item.kind == "Claim" else []
            return check_reference(item, None, namespace=self.api.namespace, path=path, others=others)
        if item.kind == "Claim":
            return [self._claim(item, tree, path)]
        out = check_reference(item, tree, namespace=self.api.namespace, path=path)
        if item.name == self.cluster.secrets.store and _is_s3(self.store):
            out += check_store_keys(item.name, tree, path=path)
        if item.kind == "PullSecret" and all(check.state == "ok" for check in out):
            out += check_pull_secret(item.name, tree, image=self.cluster.image.ref or "")
        return out

    def _claim(self, item: Reference, claim: Tree, path: str) -> Check:
        mounting = [group for group in self.groups if ("Claim", item.name) in wanted([group], [])]
        roles = {group.role for group in mounting}
        of = (claim.get("spec") or {}).get("storageClassName", "")
        storage_class: Tree | None = None
        knows_classes = True
        if (claim.get("status") or {}).get("phase") != "Bound":
            try:
                storage_class = self.api.find(f"{CLASSES}/{of}")
            except ClusterError:
                knows_classes = False
        nodes = {name for found in self.placements if found.group.role in roles for name in found.on}
        return check_claim(
            claim, name=item.name, path=path, num_pods=sum(group.count for group in mounting), nodes=nodes,
            is_read_only=item.is_read_only, storage_class=storage_class, knows_classes=knows_classes,
        )  # fmt: skip

    def _egress(self) -> list[Check]:
        own = [tree for tree in self.objects if tree["kind"] == "NetworkPolicy"]
        policies = [*own, *_seen(lambda: self.api.list("/apis/networking.k8s.io/v1/" + f"namespaces/{self.api.namespace}/networkpolicies"), [])]
        labels = self.groups[0].pod["metadata"]["labels"]
        server, checks = self._server()
        if server is None:
            return checks
        said = f"to the store, {server.host}" + (f" (pods' port {server.port})" if server.namespace else f":{server.port}")
        answer = is_reachable(server, labels, policies, self.api.namespace)
        if answer is None:
            fix = "compare cluster.networkPolicy.egress with its addresses"
            return [*checks, unseen("egress", f"whether the NetworkPolicies' addresses let the pods out {said}", fix)]
        if answer:
            return [*checks, good("egress", f"the NetworkPolicies let the pods out {said}")]
        way = f"{{namespace: {server.namespace}, ports: [{server.port}]}}" if server.namespace else f"{{cidr: 0.0.0.0/0, ports: [{server.port}]}}"
        return [*checks, bad("egress", f"no NetworkPolicy lets the pods out {said}", f"add {way} to cluster.networkPolicy.egress")]

    def _server(self) -> tuple[Server | None, list[Check]]:
        """The store's server as the pods' policies see it, and what is wrong with it itself."""
        if self.store is None or not _is_s3(self.store):
            return None, []
        endpoint = self.store.variables.get("AWS_ENDPOINT_URL_S3") or self.store.variables.get("AWS_ENDPOINT_URL") or ""
        if not endpoint:
            region = self.store.variables.get("AWS_DEFAULT_REGION") or self.store.variables.get("AWS_REGION")
            return Server(host=f"s3.{region + '.' if region else ''}amazonaws.com", port=443), []
        parts = urlsplit(endpoint)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        service = service_of(endpoint)
        if service is None:
            return Server(host=host, port=port), []
        name, namespace = service[0], service[1] or self.api.namespace
        try:
            tree = self.api.find(f"/api/v1/namespaces/{namespace}/services/{name}")
        except ClusterError as error:
            if error.status != HTTP_FORBIDDEN:
                raise
            return None, [unseen("egress", f"the store's Service {host}: you may not look at it", SEES)]
        if tree is None:
            text = f"there is no Service {name} in namespace {namespace}: {host} is no server"
            return None, [bad("egress", text, "correct store.endpoint, or have the store installed there")]
        ports = {item["port"]: item.get("targetPort", item["port"]) for item in tree["spec"].get("ports") or ()}
        if port not in ports:
            text = f"Service {host} has no port {port}: it has {', '.join(map(str, ports))}"
            return None, [bad("egress", text, "correct the port of store.endpoint")]
        pods = ports[port] if isinstance(ports[port], int) else 0
        return Server(host=host, port=pods, namespace=namespace, labels=tree["spec"].get("selector")), []


def _is_s3(at: StoreAddress | None) -> bool:
    return at is not None and urlsplit(at.url).scheme in S3_PROTOCOLS


def _namespace(api: KubeApi) -> Tree | None:
    return api.find(f"/api/v1/namespaces/{api.namespace}")


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


def _look(name: str, look: Callable[[], list[Check]]) -> list[Check]:
    """The checks, or the one line that nobody could look."""
    try:
        return look()
    except ClusterUnreachable as error:
        return [bad(name, str(error), error.fix)]
    except ClusterError as error:
        return [(unseen if error.status == HTTP_FORBIDDEN else bad)(name, str(error), SEES if error.status == HTTP_FORBIDDEN else error.fix)]


def _seen(look: Callable[[], Any], otherwise: Any = None) -> Any:
    """What is there, `otherwise` where there is none of its kind, or it may not be looked at."""
    try:
        return look()
    except ClusterError as error:
        if error.status in (HTTP_FORBIDDEN, HTTP_NOT_FOUND):
            return otherwise
        raise
