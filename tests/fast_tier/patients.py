"""The clusters of clusters/*.yaml, one after the other on an API server without controllers: nothing there changes by itself.

A case has a namespace of its own; nodes, classes and all else that no namespace of its own holds are taken away after it.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kubernetes import config
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.processes import Processes, minimal_environment
from tests.fast_tier.tier import CLUSTER_MANIFESTS

import kubeschemas
from opdctl.chart.values import merge
from opdctl.doctor.placement import Group
from opdctl.kube.client import KubeApi
from opdctl.kube.dry_run import ANY_ACCOUNT
from opdctl.kube.errors import ClusterError

Tree = dict[str, Any]
CASES = Path(__file__).parent / "clusters"
RUN = CASES / "run.yaml"
CATALOGUE = yaml.safe_load((CASES / "machines.yaml").read_text())
RAYJOBS = "CustomResourceDefinition/rayjobs.ray.io"
NAMESPACES = ("kuberay-system", "openshift-operators", "minio", "openshift-storage", "others")
# What of other software doctor reads, as far as the server has to know it.
FOREIGN = {"nodepools.karpenter.sh/v1": "NodePool", "clusterqueues.kueue.x-k8s.io/v1beta2": "ClusterQueue",
           "localqueues.kueue.x-k8s.io/v1beta2": "LocalQueue"}  # fmt: skip
RBAC = "rbac.authorization.k8s.io"
API_VERSIONS = {"Deployment": "apps/v1", "StorageClass": "storage.k8s.io/v1", "NetworkPolicy": "networking.k8s.io/v1",
                "CustomResourceDefinition": "apiextensions.k8s.io/v1", "NodePool": "karpenter.sh/v1",
                "ClusterQueue": "kueue.x-k8s.io/v1beta2", "LocalQueue": "kueue.x-k8s.io/v1beta2",
                **dict.fromkeys(("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"), f"{RBAC}/v1")}  # fmt: skip
NO_NAMESPACE = ("Node", "Namespace", "StorageClass", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "NodePool",
                "ClusterQueue", "PersistentVolume")  # fmt: skip
SHARED = ("/api/v1/nodes", "/apis/storage.k8s.io/v1/storageclasses", "/apis/karpenter.sh/v1/nodepools",
          "/api/v1/namespaces/others/pods", "/api/v1/namespaces/kube-system/configmaps",
          *(f"/apis/apps/v1/namespaces/{name}/deployments" for name in NAMESPACES[:2]),
          *(f"/api/v1/namespaces/{name}/services" for name in NAMESPACES[2:4]))  # fmt: skip


def cases(name: str) -> list[Tree]:
    """The cases of a file; those without KubeRay's definition, or with an old one, come last."""
    return sorted(yaml.safe_load((CASES / f"{name}.yaml").read_text()), key=_definition)


def nodes_of(case: Tree) -> Iterator[Tree]:
    """The nodes of a case: its platform's, unless it has others, with its taints and states."""
    for machine, count in case.get("nodes", CATALOGUE["platforms"][case["platform"]]["nodes"]).items():
        for name in (_node_name(f"{machine}-{number}") for number in range(count)):
            kind = CATALOGUE["machines"][machine]
            labels = {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **kind["labels"],
            }
            more = [_taint(text) for of, text in case.get("taint", {}).items() if _node_name(of) == name]
            ready = "False" if name in case.get("not_ready", ()) else "True"
            status = {
                "allocatable": kind["allocatable"],
                "capacity": kind["allocatable"],
                "conditions": [{"type": "Ready", "status": ready}],
            }
            spec = {"taints": [*kind.get("taints", ()), *more], "unschedulable": name in case.get("cordoned", ())}
            yield {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


class Hospital:
    """An API server, and users with the rights that manifests/cluster gives, or a case."""

    def __init__(self, folder: Path) -> None:
        self.processes = Processes(folder / "logs", environment=minimal_environment(folder))
        self.plane = ControlPlane(folder, self.processes)
        self.api = KubeApi(
            config.new_client_from_config(str(self.plane.admin.kubeconfig)), namespace="default", context=None
        )
        self._users: dict[str, Path] = {}
        self._paths: dict[str, str] = {}
        self._defined = ""

    def start(self, every_case: Sequence[Tree]) -> None:
        """Start etcd and the API server; make what all cases share, and each case's namespace with its user's rights."""
        self.plane.start_api()
        self.plane.start_scheduler()
        for name, kind in FOREIGN.items():
            self._define_foreign(name, kind)
        self._define("RayJob")
        for name in NAMESPACES:
            self._namespace(name, {})
        for case in every_case:
            self._admit(case)
        # The authorizer sees the objects of a kind in their order: what holds of the last namespace holds of all.
        self.plane.admin.until("the users have their rights", lambda: self._has_rights(every_case[-1]), timeout_s=120)

    def stop(self) -> None:
        """Stop both."""
        self.processes.stop_all()

    def kubeconfig(self, case: Tree) -> Path:
        """Of a user with the case's rights."""
        name = "user" + "".join(
            f"-{part}-{'-'.join(case[part])}" for part in ("sees", "hides", "may_not") if part in case
        )
        if name not in self._users:
            self._users[name] = self.plane.kubeconfig(name, groups=[])
        return self._users[name]

    @contextmanager
    def cluster(self, case: Tree) -> Iterator[None]:
        """The case's cluster, as long as this lasts."""
        self._define(_definition(case)[1])
        try:
            for tree in self._objects(case):
                self._post(tree)
            yield
        finally:
            for path in SHARED:
                self.api._json("DELETE", path, {"gracePeriodSeconds": 0})

    def schedules(self, case: Tree, groups: Sequence[Group], said: Tree) -> None:
        """Wait until kube-scheduler has bound as many pods of each role as was said, and refused the others; workers come first.

        Claims are left out but for those that are bound to a volume of the case: nobody makes volumes here.
        """
        # A new node is tainted until its kubelet has answered for it, which is not there.
        for node in nodes_of(case):
            if node["metadata"]["name"] not in case.get("not_ready", ()):
                self.api.merge(
                    f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"taints": node["spec"]["taints"]}}
                )
        bound = {tree["metadata"]["name"] for tree in case.get("objects", ()) if "volumeName" in tree.get("spec", {})}
        path = f"/api/v1/namespaces/{case['name']}/pods"
        try:
            for group in sorted(groups, key=lambda group: group.role != "worker"):
                for number in range(group.count):
                    self.api.create(path, _pod_of(group, f"{group.role}-{number}", bound))
                wanted = ["bound"] * said[group.role] + ["refused"] * (group.count - said[group.role])
                self.plane.admin.until(
                    f"of {group.count} pods of role {group.role} {said[group.role]} are bound",
                    lambda group=group, wanted=wanted: self._decisions(path, group) == wanted,
                )
        finally:
            self.api._json("DELETE", path, {"gracePeriodSeconds": 0})

    def _decisions(self, path: str, group: Group) -> list[str]:
        pods = [self.api.get(f"{path}/{group.role}-{number}") for number in range(group.count)]
        return sorted(map(_decision, pods))

    def _define_foreign(self, name: str, kind: str) -> None:
        full, _, version = name.partition("/")
        plural, _, group = full.partition(".")
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        versions = [{"name": version, "served": True, "storage": True, "schema": schema}]
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        scope = "Cluster" if kind in NO_NAMESPACE else "Namespaced"
        spec = {"group": group, "scope": scope, "names": names, "versions": versions}
        self._post({"kind": "CustomResourceDefinition", "metadata": {"name": full}, "spec": spec})
        self._until_served(full)

    def _define(self, state: str) -> None:
        """Serve KubeRay's definition of RayJob: whole ("RayJob"), without a field of its spec (the field), or not ("")."""
        if state == self._defined:
            return
        name = RAYJOBS.partition("/")[2]
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        if self._defined:
            self.api.delete(f"{crds}/{name}")
            self.plane.admin.until(
                "the definition is gone", lambda: self.api.find(f"{crds}/{name}") is None, timeout_s=120
            )
        if state:
            [file] = [path for path in kubeschemas.crd_files() if path.name == "ray.io_rayjobs.yaml"]
            tree = yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
            for version in tree["spec"]["versions"]:
                version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop(state, None)
            self._post(tree)
            self._until_served(name)
        self._defined = state

    def _until_served(self, name: str) -> None:
        crd = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        deadline = time.monotonic() + 120
        while True:
            spec = self.api.get(crd)["spec"]
            [version] = [item["name"] for item in spec["versions"] if item["storage"]]
            known = self.api.find(f"/apis/{spec['group']}/{version}") or {}
            if any(item["name"] == spec["names"]["plural"] for item in known.get("resources", ())):
                return
            assert time.monotonic() < deadline, f"{name} is not served"
            time.sleep(0.05)

    def _admit(self, case: Tree) -> None:
        """Namespace and account of a case, and its user's roles: those of manifests/cluster with what the case changes."""
        name, user = case["name"], self.kubeconfig(case).stem
        labels = {} if "Namespace/labels" in case.get("without", ()) else _manifest("namespace")["metadata"]["labels"]
        own = next((tree for tree in case.get("objects", ()) if tree["kind"] == "Namespace"), {"metadata": {}})
        self._namespace(name, {**labels, **own["metadata"].get("labels", {})})
        seen = [{"apiGroups": ["*"], "resources": [what], "verbs": ["get", "list"]} for what in case.get("sees", ())]
        subject = {"apiGroup": RBAC, "kind": "User", "name": user}
        for kind, file, more in (("Role", "role", []), ("ClusterRole", "cluster-role", seen)):
            rules = [one for rule in _manifest(file)["rules"] for one in _changed(rule, case)]
            about = {"name": name, "namespace": name} if kind == "Role" else {"name": name}
            self._post({"kind": kind, "metadata": about, "rules": [*rules, *more]})
            ref = {"apiGroup": RBAC, "kind": kind, "name": name}
            self._post({"kind": f"{kind}Binding", "metadata": about, "roleRef": ref, "subjects": [subject]})

    def _has_rights(self, case: Tree) -> bool:
        for namespace, group, resource in ((case["name"], "", "pods"), ("", "storage.k8s.io", "storageclasses")):
            attributes = {"namespace": namespace, "verb": "list", "group": group, "resource": resource}
            review = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                      "spec": {"user": self.kubeconfig(case).stem, "resourceAttributes": attributes}}  # fmt: skip
            if not self.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]:
                return False
        return True

    def _namespace(self, name: str, labels: Tree) -> None:
        self._post({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        self._post({"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}})

    def _objects(self, case: Tree) -> Iterator[Tree]:
        """Everything of a case's cluster but its namespace: the platform's, changed."""
        platform = CATALOGUE["platforms"][case["platform"]]
        found = {(tree["kind"], tree["metadata"]["name"]): tree for tree in _common(platform)}
        for tree in json.loads(json.dumps(case.get("objects", [])).replace("{namespace}", case["name"])):
            at = (tree["kind"], tree["metadata"].get("name", ""))
            found[at] = tree if tree["kind"] == "Secret" else merge(found.get(at, {}), tree)
        found.pop(("Namespace", ""), None)
        for text in case.get("without", ()):
            kind, _, name = text.partition("/")
            at = (kind, name)
            if at in found and not any(at == (tree["kind"], tree["metadata"].get("name")) and "namespace" in tree["metadata"]
                                       for tree in case.get("objects", ())):  # fmt: skip
                del found[at]
        for tree in [*found.values(), *nodes_of(case), *_pods(case)]:
            if tree["kind"] not in NO_NAMESPACE:
                tree["metadata"].setdefault("namespace", case["name"])
            yield _complete(tree)

    def _post(self, tree: Tree) -> None:
        """Creates an object, and writes its status where it has one."""
        kind, about = tree["kind"], tree["metadata"]
        tree = {"apiVersion": API_VERSIONS.get(kind, "v1"), **tree}
        if kind not in self._paths:
            self._paths[kind] = "{}/{{}}{}".format(*self.api.resource_of(tree["apiVersion"], kind))
        path = self._paths[kind].format("" if kind in NO_NAMESPACE else f"namespaces/{about['namespace']}/")
        try:
            self.api.create(path, tree)
        except ClusterError as error:
            raise AssertionError(f"{kind} {about['name']}: {error}") from error
        if "status" in tree and kind in ("ResourceQuota", "PersistentVolumeClaim", "Pod"):
            self.api.merge(f"{path}/{about['name']}/status", {"status": tree["status"]})


def _decision(pod: Tree) -> str:
    reasons = {one.get("reason") for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"}
    return "bound" if pod["spec"].get("nodeName") else "refused" if "Unschedulable" in reasons else ""


def _pod_of(group: Group, name: str, bound: set[str]) -> Tree:
    """A pod of a run's group with an account that is there, and folders of its own for the claims that are not bound."""
    volumes = [
        {"name": one["name"], "emptyDir": {}}
        if "persistentVolumeClaim" in one and one["persistentVolumeClaim"]["claimName"] not in bound
        else one
        for one in group.spec.get("volumes") or ()
    ]
    spec = {**group.spec, "serviceAccountName": ANY_ACCOUNT, "volumes": volumes}
    return {**group.pod, "metadata": {**group.pod["metadata"], "name": name}, "spec": spec}


def _definition(case: Tree) -> tuple[int, str]:
    """(order, what of KubeRay's definition of RayJob the case serves)."""
    text = next((text for text in case.get("without", ()) if text.startswith(RAYJOBS)), None)
    if text is None:
        return 0, "RayJob"
    field = text.removeprefix(RAYJOBS).removeprefix(":")
    return (1, field) if field else (2, "")


def _manifest(name: str) -> Tree:
    """The first object of a file of manifests/cluster, for any namespace."""
    [file] = CLUSTER_MANIFESTS.parent.rglob(f"{name}.yaml")
    tree = next(yaml.safe_load_all(file.read_text()))
    tree["metadata"].pop("namespace", None)
    return tree


def _changed(rule: Tree, case: Tree) -> Iterator[Tree]:
    for resource in rule["resources"]:
        gone = {"get", "list", "watch"} if resource in case.get("hides", ()) else set()
        gone |= {"create"} if resource in case.get("may_not", ()) else set()
        if verbs := [verb for verb in rule["verbs"] if verb not in gone]:
            yield {**rule, "resources": [resource], "verbs": verbs}


def _common(platform: Tree) -> Iterator[Tree]:
    """What every sound cluster has: classes, the store's server, the operator, Secrets, the cache's claim, quota, policy."""
    for name, provisioner in platform["classes"].items():
        yield {"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner}
    if service := platform.get("service"):
        port = {"port": service["port"], "targetPort": service["targetPort"]}
        about = {"name": service["name"], "namespace": service["namespace"]}
        yield {"kind": "Service", "metadata": about, "spec": {"ports": [port], "selector": {"app": "objects"}}}
    operator = {"name": "kuberay-operator", "image": "quay.io/kuberay/operator:v1.6.1"}
    yield {
        "kind": "Deployment",
        "metadata": {"name": "kuberay-operator", "namespace": "kuberay-system"},
        "spec": {"containers": [operator]},
    }
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    yield {"kind": "Secret", "metadata": {"name": "experiment-store"}, "stringData": keys}
    yield {"kind": "Secret", "metadata": {"name": "hugging-face"}, "stringData": {"token": "hf"}}
    login = base64.b64encode(json.dumps({"auths": {"registry.example.com": {"auth": "eDp5"}}}).encode()).decode()
    yield {
        "kind": "Secret",
        "metadata": {"name": "registry"},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": login},
    }
    yield {"kind": "PersistentVolumeClaim", "metadata": {"name": "hub-cache"}, "status": {"phase": "Bound"}}
    quota = _manifest("quota")
    yield {**quota, "status": {"hard": quota["spec"]["hard"], "used": dict.fromkeys(quota["spec"]["hard"], "0")}}
    yield _manifest("default-deny")


def _pods(case: Tree) -> Iterator[Tree]:
    for number, pod in enumerate(case.get("pods", ())):
        resources = {
            "requests": pod["requests"],
            "limits": {name: value for name, value in pod["requests"].items() if "/" in name},
        }
        spec = {
            "nodeName": _node_name(pod["node"]),
            "containers": [{"name": "main", "image": "example.com/x", "resources": resources}],
        }
        status = {"phase": pod.get("phase", "Running")}
        yield {
            "kind": "Pod",
            "metadata": {"name": f"other-{number}", "namespace": "others"},
            "spec": spec,
            "status": status,
        }


def _complete(tree: Tree) -> Tree:
    """An object with what the cases leave out of it."""
    if tree["kind"] == "PersistentVolumeClaim":
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "2Ti"}}}
        return {**tree, "spec": {**spec, **tree.get("spec", {})}, "status": tree.get("status", {"phase": "Bound"})}
    if tree["kind"] == "Deployment":
        labels = {"app.kubernetes.io/name": tree["metadata"]["name"]}
        template = {"metadata": {"labels": labels}, "spec": tree["spec"]}
        return {**tree, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    return tree


def _node_name(text: str) -> str:
    return re.sub(r"[^a-z0-9-]", "-", text.lower())


def _taint(text: str) -> Tree:
    key, _, effect = text.rpartition(":")
    key, _, value = key.partition("=")
    return {"key": key, "value": value, "effect": effect}
