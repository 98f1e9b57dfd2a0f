"""Doctor's look at a cluster and its namespace: KubeRay, its operator, rights, and what the API server refuses."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from opdctl.doctor.looking import APPLY_MANIFESTS
from opdctl.doctor.report import Check, bad, good, warning
from opdctl.doctor.selectors import Tree

# The field of the RayJob CRD that came with KubeRay 1.6: the CRD carries no version.
NEWEST_FIELD = "preRunningDeadlineSeconds"
MIN_KUBERAY = (1, 6)
MIN_TEXT = ".".join(map(str, MIN_KUBERAY))
OPERATOR = "kuberay-operator"
INSTALL_KUBERAY = (
    f"an admin installs the operator, {MIN_TEXT} or newer: helm install {OPERATOR} kuberay/{OPERATOR} -n kuberay-system "
    "--create-namespace -f manifests/cluster/operator-values.yaml"
)
_WATCH = re.compile(r"^--?watch-namespace(?:=(.*))?$")


def check_kuberay(crd: Tree | None) -> Check:
    """Whether KubeRay is there and new enough, by its CRD."""
    if crd is None:
        return bad("kuberay", "there is no CRD rayjobs.ray.io: KubeRay is not installed", INSTALL_KUBERAY)
    version = next((item for item in crd["spec"]["versions"] if item["name"] == "v1"), None)
    fields = ((version or {}).get("schema", {}).get("openAPIV3Schema", {}).get("properties", {}).get("spec", {})).get(
        "properties", {}
    )
    if NEWEST_FIELD not in fields:
        return bad(
            "kuberay",
            f"the CRD rayjobs.ray.io has no field {NEWEST_FIELD}: older than {MIN_TEXT}",
            f"an admin replaces the CRDs by those of KubeRay {MIN_TEXT} or newer with `kubectl replace`, which Helm leaves as they are",
        )
    return good("kuberay", f"RayJob v1 with {NEWEST_FIELD}: {MIN_TEXT} or newer")


def check_operator(deployments: Sequence[Tree], *, namespace: str, expected_in: str) -> list[Check]:
    """Whether KubeRay's operator runs, is new enough, looks after the namespace, and may reach a run's dashboard.

    Args:
        deployments: those of its name in any namespace.
        expected_in: `cluster.networkPolicy.operatorNamespace`.
    """
    if not deployments:
        text = f"no Deployment {OPERATOR} in any namespace, though KubeRay's CRDs are there"
        return [warning("operator", text, f"if it does not run under another name: {INSTALL_KUBERAY}")]
    found = [_check_operator(item, namespace, expected_in) for item in deployments]
    return [next((check for check in found if check.state == "ok"), found[0])]


def _check_operator(deployment: Tree, namespace: str, expected_in: str) -> Check:
    home = deployment["metadata"]["namespace"]
    pod = deployment["spec"]["template"]["spec"]
    container = next((item for item in pod["containers"] if item["name"] == OPERATOR), pod["containers"][0])
    said = f"{OPERATOR} in namespace {home}"
    version = re.search(r":v?(\d+)\.(\d+)(\.\d+)?[^@/]*(@|$)", container["image"])
    if version and (int(version[1]), int(version[2])) < MIN_KUBERAY:
        text = f"{said} is {version[0].strip(':@')}, older than {MIN_TEXT}"
        return bad("operator", text, f"an admin upgrades it to {MIN_TEXT} or newer, with its CRDs")
    watched = _watched([*(container.get("command") or ()), *(container.get("args") or ())])
    if watched and namespace not in watched:
        text = f"{said} watches only {','.join(watched)}: nothing would happen to a run in {namespace}"
        return bad("operator", text, f"an admin adds {namespace} to its --watch-namespace, or use one that it watches")
    status = deployment.get("status") or {}
    if status.get("unavailableReplicas") and not status.get("availableReplicas"):
        return bad("operator", f"{said} has no running pod", f"kubectl describe deployment {OPERATOR} -n {home}")
    if home != expected_in:
        text = f"{said}, but the run's NetworkPolicy lets the operator of namespace {expected_in} in"
        return bad("operator", text, f"set cluster.networkPolicy.operatorNamespace: {home}")
    return good("operator", f"{said}, which watches {'this namespace' if watched else 'all namespaces'}")


def _watched(words: Sequence[str]) -> list[str]:
    for index, word in enumerate(words):
        if match := _WATCH.match(word):
            value = match[1] if match[1] is not None else words[index + 1] if index + 1 < len(words) else ""
            return [name for name in value.split(",") if name]
    return []


def check_rights(missing: Sequence[str], namespace: str) -> Check:
    """Whether this person may do what the commands do; `missing` are `verb resource` pairs."""
    if missing:
        return bad(
            "rights",
            f"not allowed in namespace {namespace}: {', '.join(missing)}",
            f"{APPLY_MANIFESTS} and adds you to the group opd-users, which its RoleBinding opd-user names",
        )
    return good("rights", f"may install, follow and delete runs in namespace {namespace}")


def check_namespace(tree: Tree | None, name: str) -> Check:
    """Whether the namespace is there, and what it enforces."""
    if tree is None:
        return bad("namespace", f"there is no namespace {name}", f"{APPLY_MANIFESTS}, or name another with --namespace")
    labels = tree.get("metadata", {}).get("labels", {})
    level = labels.get("pod-security.kubernetes.io/enforce", "none")
    policy = (
        "" if labels.get("opd/runs") == "true" else "; the suspend policy does not select it (label opd/runs: true)"
    )
    return good("namespace", f"{name}, Pod Security {level}{policy}")


def check_admission(refused: Iterable[tuple[str, str, str]], *, limit_ranges: Collection[str]) -> list[Check]:
    """What the API server's dry run refuses: (whose object, its message, the tool's fix).

    Args:
        limit_ranges: names of the namespace's LimitRanges.
    """
    return [
        bad("admission", f"{who}: {message}", _mend(who, message, limit_ranges) or fix) for who, message, fix in refused
    ]


def _mend(who: str, message: str, limit_ranges: Collection[str]) -> str:
    if "violates PodSecurity" in message and "IPC_LOCK" in message:
        return "use the namespace of manifests/cluster/overlays/rdma, or cluster.rdma.ipcLock: false with nodes of unlimited memlock"
    if "violates PodSecurity" in message:
        return f"change what the message names under cluster.{who}, or use a namespace that allows it"
    if " usage per " in message or "ratio per" in message:
        names = ", ".join(sorted(limit_ranges)) or "of the namespace"
        return f"LimitRange {names} says so: ask for other cluster.{who}.requests and limits, or have it changed"
    if "must specify" in message:
        return f"a ResourceQuota wants them: set cluster.{who}.requests and cluster.{who}.limits"
    if "deletionRules" in message and "jobStatus" in message:
        return (
            "set cluster.lifecycle: suspendable: a webhook (Kueue's up to 0.16) writes RayJobs with KubeRay 1.5's types"
        )
    if "no PriorityClass" in message:
        return f"make the PriorityClass, or correct cluster.{who}.priorityClassName"
    if "RuntimeClass" in message:
        return "make the RuntimeClass (the GPU operator or k3s brings one), or correct runtimeClassName"
    return ""
