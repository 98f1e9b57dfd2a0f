"""A rendered run: its objects, its pods, the objects that they name, and the API server's dry run of each.

`helm install --dry-run=server` only renders. The server's dry run checks validation, admission (Pod Security, policies,
quota) and unknown fields. KubeRay makes the pods later and leaves an event for a rejected pod: so each pod is tried, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from opdctl.kube.client import HTTP_CONFLICT, QUEUE_LABEL, ClusterError, KubeApi, Tree

HOOK_ANNOTATION = "helm.sh/hook"
PULL_KEY = ".dockerconfigjson"
SECRETS, CONFIG_MAPS, CLAIMS, ACCOUNTS = "secrets", "configmaps", "persistentvolumeclaims", "serviceaccounts"
QUEUES = "localqueues"
# The fields of a pod that name an object: its resource, and the key of its name; in a projected volume that is `name`.
_NAMING = {
    "secretKeyRef": (SECRETS, "name"), "secretRef": (SECRETS, "name"), "secret": (SECRETS, "secretName"),
    "configMapKeyRef": (CONFIG_MAPS, "name"), "configMapRef": (CONFIG_MAPS, "name"), "configMap": (CONFIG_MAPS, "name"),
    "persistentVolumeClaim": (CLAIMS, "claimName"),
}  # fmt: skip
# The name of an object by its resource, and the keys that the pods read of it.
References = dict[tuple[str, str], frozenset[str]]


@dataclass(frozen=True)
class Rendered:
    """One run as Helm renders it."""

    text: str

    @cached_property
    def objects(self) -> list[Tree]:
        """The objects that an installation makes, without hooks."""
        trees = [
            tree for tree in yaml.load_all(self.text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if tree
        ]
        return [tree for tree in trees if HOOK_ANNOTATION not in (tree["metadata"].get("annotations") or {})]

    @property
    def job(self) -> Tree:
        return next(tree for tree in self.objects if tree["kind"] == "RayJob")

    @cached_property
    def pods(self) -> dict[str, Tree]:
        """A pod of each of the RayJob's templates by its role, without KubeRay's own additions."""
        cluster = self.job["spec"]["rayClusterSpec"]
        templates = {"head": cluster["headGroupSpec"]["template"]}
        templates |= {group["groupName"]: group["template"] for group in cluster.get("workerGroupSpecs", [])}
        if "submitterPodTemplate" in self.job["spec"]:
            templates["submitter"] = self.job["spec"]["submitterPodTemplate"]
        name = self.job["metadata"]["name"]
        return {
            role: {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
                   "metadata": {**template.get("metadata", {}), "name": f"{name}-{role}"}}
            for role, template in templates.items()
        }  # fmt: skip

    def references(self) -> References:
        """Return the objects that RayJob and pods need and the run does not bring itself."""
        own = {(f"{tree['kind'].lower()}s", tree["metadata"]["name"]) for tree in self.objects}
        found: References = {}
        for resource, name, keys in (item for pod in self.pods.values() for item in _named_by(pod["spec"])):
            if (resource, name) not in own:
                found[resource, name] = found.get((resource, name), frozenset()) | keys
        if queue := self.job["metadata"]["labels"].get(QUEUE_LABEL):
            found[QUEUES, queue] = frozenset()
        return found


def _named_by(tree: Any) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield resource, name and keys of the objects that a part of a pod names, without optional objects."""
    for inner in tree if isinstance(tree, list) else ():
        yield from _named_by(inner)
    for field, inner in tree.items() if isinstance(tree, dict) else ():
        if field == "imagePullSecrets":
            yield from ((SECRETS, secret["name"], frozenset([PULL_KEY])) for secret in inner)
        elif field == "serviceAccountName":
            yield ACCOUNTS, inner, frozenset()
        elif field not in _NAMING or not isinstance(inner, dict):
            yield from _named_by(inner)
        elif not inner.get("optional"):
            resource, name = _NAMING[field]
            keys = [inner["key"]] if "key" in inner else [item["key"] for item in inner.get("items") or ()]
            yield resource, inner.get(name) or inner["name"], frozenset(keys)


def dry_run(api: KubeApi, rendered: Rendered) -> tuple[list[ClusterError], list[ClusterError]]:
    """Return the server's rejections, and rejections of pods by a used-up quota, which other runs' ends mend.

    An object that exists already has passed validation and admission: a run that is resumed finds its kept claim.
    """
    rejected, waiting = list[ClusterError](), list[ClusterError]()
    for tree in [*rendered.pods.values(), *rendered.objects]:
        is_pod = tree["kind"] == "Pod"
        if is_pod:  # its own account comes with the installation
            tree = {**tree, "spec": {**tree["spec"], "serviceAccountName": "default"}}
        query = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "opdctl"}
        try:
            api.create(_path(api, tree), tree, **query)
        except ClusterError as error:
            if error.status == 0:
                raise
            if error.status == HTTP_CONFLICT and "already exists" in str(error):
                continue
            who = f"{tree['kind']} {tree['metadata']['name']}"
            found = ClusterError(f"{who}: {error}", status=error.status, fix=_mend(who, str(error)) or error.fix)
            (waiting if is_pod and "exceeded quota" in str(error) else rejected).append(found)
    return rejected, waiting


def _path(api: KubeApi, tree: Tree) -> str:
    """Return the path of an object's kind, whose plural follows English: rayjobs, networkpolicies."""
    version, kind = tree["apiVersion"], tree["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{api.namespace}/{plural}"


def _mend(who: str, message: str) -> str:
    """Return the fix of a rejection; empty for others than the usual."""
    if "could not find the requested resource" in message:
        return f"the cluster has no API for the {who} (`opdctl doctor` checks KubeRay): install it, or drop the key that needs it"
    if "violates PodSecurity" in message and "IPC_LOCK" in message:
        return "use the namespace of manifests/cluster/overlays/rdma, or cluster.rdma.ipcLock: false with unlimited memlock"
    if "violates PodSecurity" in message:
        return f"change what the message names of the {who}, or use a namespace that allows it"
    if " usage per " in message or "ratio per" in message or "must specify" in message:
        return f"a LimitRange or ResourceQuota asks for other requests and limits of the {who}: set them in `cluster`"
    if "deletionRules" in message and "jobStatus" in message:
        return (
            "set cluster.lifecycle: suspendable: a webhook (Kueue's up to 0.16) writes RayJobs with KubeRay 1.5's types"
        )
    return ""
