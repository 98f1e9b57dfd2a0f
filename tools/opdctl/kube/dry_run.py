"""Sends every rendered object through the real API server as a dry run: nothing is stored.

`helm install --dry-run=server` only renders. Here validation, admission (Pod Security, policies, quota) and unknown
fields are judged by the server that the run is for. KubeRay makes the pods later, as another user, and would only leave
an event when one is refused: so each pod template is tried too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from opdctl.kube.client import KubeApi
from opdctl.kube.errors import HTTP_CONFLICT, HTTP_NOT_FOUND, ClusterError

HOOK_ANNOTATION = "helm.sh/hook"
# In every namespace; a run's own is not there before it is installed.
ANY_ACCOUNT = "default"


def rendered_objects(text: str) -> list[dict[str, Any]]:
    """The objects that an installation makes: those of hooks (`helm test`) come later, if at all."""
    trees = [tree for tree in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if tree]
    return [tree for tree in trees if HOOK_ANNOTATION not in (tree["metadata"].get("annotations") or {})]


def pods_of(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A pod of each of a RayJob's templates, as KubeRay would make them but for what it adds itself."""
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
    """What the server would refuse, a line an object; empty where everything would be taken.

    An object that is there already has passed validation and admission before its name is compared: resuming a run finds
    its kept claim.

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
    """Whether a RoleBinding was refused for its Role alone, which comes with it and was judged by the same rules."""
    role = tree.get("roleRef")
    return (
        role is not None
        and error.status == HTTP_NOT_FOUND
        and any((other["kind"], other["metadata"]["name"]) == (role["kind"], role["name"]) for other in trees)
    )


def _with_an_account(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "spec": {**tree["spec"], "serviceAccountName": ANY_ACCOUNT}} if tree["kind"] == "Pod" else tree


def is_over_quota(error: ClusterError) -> bool:
    """Whether waiting would mend it."""
    return "exceeded quota" in str(error)
