"""Owns the server-side dry run: every rendered object goes through the real API server, and nothing is stored.

`helm install --dry-run=server` only renders. Here validation, admission (Pod Security, policies, quota) and unknown
fields are judged by the server that the run is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from opdctl.cluster.client import KubeApi
from opdctl.cluster.errors import HTTP_CONFLICT, ClusterError


def rendered_objects(text: str) -> list[dict[str, Any]]:
    """The objects of rendered manifests."""
    return [tree for tree in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if tree]


def dry_run(api: KubeApi, objects: Iterable[dict[str, Any]]) -> list[ClusterError]:
    """What the server would refuse, a line an object; empty where everything would be taken.

    An object that is there already has passed validation and admission before its name is compared: resuming a run finds
    its kept claim.

    Raises:
        ClusterUnreachable: no answer.
    """
    refused = []
    for tree in objects:
        try:
            group, plural = api.resource_of(tree["apiVersion"], tree["kind"])
            api.create(
                f"{group}/namespaces/{api.namespace}/{plural}",
                tree,
                dryRun="All",
                fieldValidation="Strict",
                fieldManager="opdctl",
            )
        except ClusterError as error:
            if error.status == 0:
                raise
            if not (error.status == HTTP_CONFLICT and error.reason == "AlreadyExists"):
                refused.append(error)
    return refused
