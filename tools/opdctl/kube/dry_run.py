"""The API server's dry run of every rendered object: nothing is stored.

`helm install --dry-run=server` only renders. The server's dry run checks validation, admission (Pod Security, policies,
quota) and unknown fields. KubeRay makes the pods later and leaves an event for a rejected pod: so each pod template is
tried, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from opdctl.kube.client import KubeApi
from opdctl.kube.errors import HTTP_CONFLICT, HTTP_NOT_FOUND, ClusterError

HOOK_ANNOTATION = "helm.sh/hook"
# Every namespace has it; a run's own account comes with the installation.
ANY_ACCOUNT = "default"


def rendered_objects(text: str) -> list[dict[str, Any]]:
    """Return the objects that an installation makes, without hooks (`helm test`)."""
    trees = [tree for tree in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if tree]
    return [tree for tree in trees if HOOK_ANNOTATION not in (tree["metadata"].get("annotations") or {})]


def pods_of(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a pod of each of a RayJob's templates, without KubeRay's own additions."""
    cluster = job["spec"]["rayClusterSpec"]
    templates = {"head": cluster["headGroupSpec"]["template"]}
    templates |= {group["groupName"]: group["template"] for group in cluster.get("workerGroupSpecs", [])}
    if "submitterPodTemplate" in job["spec"]:
        templates["submitter"] = job["spec"]["submitterPodTemplate"]
    for role, template in templates.items():
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template.get("metadata", {}), "name": f"{job['metadata']['name']}-{role}"},
            "spec": template["spec"],
        }


def dry_run(api: KubeApi, objects: Iterable[dict[str, Any]]) -> list[ClusterError]:
    """Return the server's rejections, at most one for each object.

    An object that exists already has passed validation and admission: a run that is resumed finds its kept claim.

    Raises:
        ClusterUnreachable: no answer.
    """
    refused, trees = [], list(objects)
    for tree in trees:
        try:
            group, plural = api.resource_of(tree["apiVersion"], tree["kind"])
            api.create(
                f"{group}/namespaces/{api.namespace}/{plural}",
                _with_an_account(tree),
                dryRun="All",
                fieldValidation="Strict",
                fieldManager="opdctl",
            )
        except ClusterError as error:
            if error.status == 0:
                raise
            is_there = error.status == HTTP_CONFLICT and error.reason == "AlreadyExists"
            if not is_there and not _awaits_its_role(error, tree, trees):
                refused.append(error)
    return refused


def _awaits_its_role(error: ClusterError, tree: Mapping[str, Any], trees: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the server rejects a RoleBinding only because its Role does not exist yet."""
    role = tree.get("roleRef")
    return (
        role is not None
        and error.status == HTTP_NOT_FOUND
        and any((other["kind"], other["metadata"]["name"]) == (role["kind"], role["name"]) for other in trees)
    )


def _with_an_account(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "spec": {**tree["spec"], "serviceAccountName": ANY_ACCOUNT}} if tree["kind"] == "Pod" else tree


def is_over_quota(error: ClusterError) -> bool:
    """Return whether the quota is used up, which other runs' ends mend."""
    return "exceeded quota" in str(error)
