"""Doctor's look at one rendered run in one namespace: reads what each check judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from opd.config import dump_spec
from opd.config.cluster import Cluster, RunCluster, parse_cluster
from opd.store.access import address_of
from opdctl.chart.values import Experiment
from opdctl.doctor.check_objects import check_claim, check_class, check_pull_secret, check_reference, check_store_keys
from opdctl.doctor.check_placement import check_placement
from opdctl.doctor.check_shares import check_quota
from opdctl.doctor.checks import OPERATOR, check_admission, check_operator
from opdctl.doctor.looking import look_at, seen
from opdctl.doctor.nodes import Node, read_nodes
from opdctl.doctor.placement import Placement, place
from opdctl.doctor.queues import look_at_queue
from opdctl.doctor.rendered import Reference, groups_of, wanted, where
from opdctl.doctor.report import Check, good, unseen
from opdctl.doctor.volumes import CLASSES, mounts_of
from opdctl.doctor.way_out import is_s3, look_at_way_out
from opdctl.kube.client import KubeApi, Tree
from opdctl.kube.dry_run import dry_run, is_over_quota, rendered_objects
from opdctl.kube.errors import HTTP_FORBIDDEN, ClusterError

DEPLOYMENTS = "/apis/apps/v1/deployments"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
AUTOSCALER = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
PATHS = {"Secret": "secrets", "PullSecret": "secrets", "ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts",
         "Claim": "persistentvolumeclaims"}  # fmt: skip


class Examination:
    """The checks of one rendered run in one namespace."""

    def __init__(self, api: KubeApi, item: Experiment, text: str):
        self.api = api
        self.tree = item.values.get("cluster") or {}
        self.cluster: Cluster = parse_cluster(self.tree, item.spec.kind)
        self.store = address_of(dump_spec(item.spec))
        self.objects = rendered_objects(text)
        self.job = next(tree for tree in self.objects if tree["kind"] == "RayJob")
        self.groups = groups_of(self.objects, api.namespace)
        self.placements: list[Placement] = []

    def checks(self) -> list[Check]:
        """All of them, each on its own: what one may not see does not keep the others."""
        parts: Sequence[tuple[str, Callable[[], list[Check]]]] = (
            ("operator", self._operator),
            ("admission", self._admission),
            ("placement", self._placement),
            ("quota", self._quota),
            ("queue", lambda: look_at_queue(self.api, self.job, self.groups)),
            ("storage", self._storage),
            *((item.kind.removeprefix("Pull").lower(), partial(self._reference, item))
              for item in wanted(self.groups, self.objects).values()),
            ("egress", lambda: look_at_way_out(self.api, self.store, self.objects, self.groups[0].guest.labels)),
        )  # fmt: skip
        return [check for name, look in parts for check in look_at(name, look)]

    def secrets(self) -> list[Check]:
        """Whether the Secrets that the pods name are there, with the keys that are read."""
        items = [item for item in wanted(self.groups, self.objects).values() if PATHS[item.kind] == "secrets"]
        return [check for item in items for check in look_at("secret", partial(self._reference, item))]

    def _operator(self) -> list[Check]:
        found = self.api.list(DEPLOYMENTS, fieldSelector=f"metadata.name={OPERATOR}")
        expected_in = self.cluster.network_policy.operator_namespace
        return check_operator(found, namespace=self.api.namespace, expected_in=expected_in)

    def _admission(self) -> list[Check]:
        tries = [(group.role, dict(group.pod)) for group in self.groups]
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
            out = [
                unseen(
                    "placement",
                    "what other namespaces' pods hold of the nodes: you may not list them",
                    "ask an admin what is free",
                )
            ]
            pods = self.api.list(self.api.path("pods"))
        nodes = read_nodes(self.api.list("/api/v1/nodes"), pods)
        groups = [replace(group, mounts=tuple(mounts_of(self.api, group.spec, self.objects))) for group in self.groups]
        self.placements = place(groups, nodes)
        autoscaler = "" if all(item.is_whole for item in self.placements) else self._autoscaler(nodes)
        gpu = self.cluster.gpu.model_dump(by_alias=True) if isinstance(self.cluster, RunCluster) else None
        return [*(check_placement(item, nodes, gpu, autoscaler=autoscaler) for item in self.placements), *out]

    def _autoscaler(self, nodes: Sequence[Node]) -> str:
        """What may add nodes, as far as this person can see it."""
        if pools := seen(lambda: self.api.list(NODE_POOLS)):
            return f"Karpenter (NodePool {', '.join(pool['metadata']['name'] for pool in pools)})"
        if any(label.startswith("karpenter.sh/") for node in nodes for label in node.labels):
            return "Karpenter"
        return "the cluster's autoscaler" if seen(lambda: self.api.find(AUTOSCALER)) else ""

    def _quota(self) -> list[Check]:
        brought = [tree for tree in self.objects if tree["kind"] != "PersistentVolumeClaim" or not self._is_kept(tree)]
        quotas = self.api.list(self.api.path("resourcequotas"))
        return [check for quota in quotas for check in check_quota(quota, self.groups, brought)]

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
            others = (
                [one["metadata"]["name"] for one in self.api.list(self.api.path(kind))] if item.kind == "Claim" else []
            )
            return check_reference(item, None, namespace=self.api.namespace, path=path, others=others)
        if item.kind == "Claim":
            return [self._claim(item, tree, path)]
        out = check_reference(item, tree, namespace=self.api.namespace, path=path)
        if item.name == self.cluster.secrets.store and is_s3(self.store):
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
