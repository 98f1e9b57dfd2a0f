"""The rules of `podSpec`: fields of a group's pods beyond the schema, which the charts merge last over what they render.

Its key `unset` is a list of fields of ours to drop, as dotted paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opd.config.cluster.base import KubeObject
from opd.config.errors import Problem

GUARDED = (
    "automountServiceAccountToken",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPath",
    "hostPort",
    "privileged",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "serviceAccountToken",
)
"""Fields, at any depth, on which Pod Security `restricted` and the pods' identity rest."""

FREE_TO_UNSET = ("securityContext.runAsUser", "securityContext.runAsGroup", "securityContext.fsGroup")
"""For platforms that choose them, as OpenShift does: `runAsNonRoot` stays."""

RULE = "Pod Security `restricted` or the pods' identity rests on it, so podSpec leaves it alone"
FIX = (
    "remove it (user and groups: cluster.podSecurity; account: cluster.serviceAccount.name), or set "
    "cluster.podSecurity.acceptUnrestricted: true"
)
UNSET_RULE = "it is a list of fields to drop, as dotted paths"
UNSET_FIX = "write it like unset: [securityContext.runAsUser]"


def check_pod_spec(role: str, pod_spec: KubeObject, *, accept_unrestricted: bool) -> Iterator[Problem]:
    """Every guarded field that is set or dropped, and an `unset` that is no list of paths."""
    key = f"cluster.{role}.podSpec"
    unset = pod_spec.get("unset", [])
    if not isinstance(unset, list) or not all(isinstance(path, str) for path in unset):
        yield Problem(path=f"{key}.unset", value=unset, rule=UNSET_RULE, fix=UNSET_FIX)
    elif not accept_unrestricted:
        for index, path in enumerate(unset):
            if path not in FREE_TO_UNSET and set(path.split(".")) & set(GUARDED):
                yield Problem(path=f"{key}.unset.{index}", value=path, rule=RULE, fix=FIX)
    if not accept_unrestricted:
        for path, value in _guarded(pod_spec, key):
            yield Problem(path=path, value=value, rule=RULE, fix=FIX)


def _guarded(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict | list):
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if key in GUARDED:
            yield f"{path}.{key}", value
        else:
            yield from _guarded(value, f"{path}.{key}")
