"""Checks of objects as the API server gives them: KubeRay, the namespace, rights, and the objects that pods name."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from opdctl.doctor.check import Check, bad, good, warning
from opdctl.doctor.rendered import Reference, Tree
from opdctl.kube.client import DEFAULT_CLASS
from opdctl.kube.secrets import make_pull_secret, make_secret

APPLY_MANIFESTS = "an admin applies manifests/cluster"
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
PULL_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
# Storage that one node at a time mounts: the drivers of the clouds' disks, of node-local folders and of Ceph's block devices.
BLOCK_PROVISIONERS = (
    "ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com", "kubernetes.io/aws-ebs", "pd.csi.storage.gke.io", "kubernetes.io/gce-pd",
    "disk.csi.azure.com", "kubernetes.io/azure-disk", "rancher.io/local-path", "topolvm.io",
)  # fmt: skip
# Each of them is a way to S3 that its client finds in the environment.
S3_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE", "AWS_CONFIG_FILE",
                "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")  # fmt: skip
_MAKE = {
    "ConfigMap": "kubectl create configmap {name} -n {namespace} --from-literal={key}=...",
    "ServiceAccount": "kubectl create serviceaccount {name} -n {namespace}",
    "Claim": "make it, or apply manifests/cluster with components/claims (manifests/stage.yaml fills it), or correct {path}",
}


def check_kuberay(crd: Tree | None) -> Check:
    """Check that KubeRay is installed and new enough, by its CRD."""
    if crd is None:
        return bad("kuberay", "there is no CRD rayjobs.ray.io: KubeRay is not installed", INSTALL_KUBERAY)
    tree: Any = next((item for item in crd["spec"]["versions"] if item["name"] == "v1"), {})
    for key in ("schema", "openAPIV3Schema", "properties", "spec", "properties"):
        tree = tree.get(key, {})
    if NEWEST_FIELD not in tree:
        fix = f"an admin replaces the CRDs by those in KubeRay {MIN_TEXT} or newer with `kubectl replace`"
        return bad("kuberay", f"the CRD rayjobs.ray.io has no field {NEWEST_FIELD}: older than {MIN_TEXT}", fix)
    return good("kuberay", f"RayJob v1 with {NEWEST_FIELD}: {MIN_TEXT} or newer")


def check_operator(deployments: Sequence[Tree], *, namespace: str, expected_in: str) -> Check:
    """Check that KubeRay's operator runs, is new enough, watches the namespace, and may reach a run's dashboard.

    Args:
        deployments: all with its name, in any namespace.
        expected_in: `cluster.networkPolicy.operatorNamespace`.
    """
    if not deployments:
        text = f"no Deployment {OPERATOR} in any namespace, though KubeRay's CRDs are installed"
        return warning("operator", text, f"if it does not run under another name: {INSTALL_KUBERAY}")
    found = [_check_operator(item, namespace, expected_in) for item in deployments]
    return next((check for check in found if check.state == "ok"), found[0])


def _check_operator(deployment: Tree, namespace: str, expected_in: str) -> Check:
    home = deployment["metadata"]["namespace"]
    pod = deployment["spec"]["template"]["spec"]
    container = next((item for item in pod["containers"] if item["name"] == OPERATOR), pod["containers"][0])
    name = f"{OPERATOR} in namespace {home}"
    version = re.search(r":v?(\d+)\.(\d+)(\.\d+)?[^@/]*(@|$)", container["image"])
    if version and (int(version[1]), int(version[2])) < MIN_KUBERAY:
        text = f"{name} is {version[0].strip(':@')}, older than {MIN_TEXT}"
        return bad("operator", text, f"an admin upgrades it to {MIN_TEXT} or newer, with its CRDs")
    watched = _watched([*(container.get("command") or ()), *(container.get("args") or ())])
    if watched and namespace not in watched:
        text = f"{name} watches only {','.join(watched)}: no run in {namespace} would start"
        return bad("operator", text, f"an admin adds {namespace} to its --watch-namespace, or use one that it watches")
    status = deployment.get("status") or {}
    if status.get("unavailableReplicas") and not status.get("availableReplicas"):
        return bad("operator", f"{name} has no running pod", f"kubectl describe deployment {OPERATOR} -n {home}")
    if home != expected_in:
        text = f"{name}, but the run's NetworkPolicy admits the operator of namespace {expected_in}"
        return bad("operator", text, f"set cluster.networkPolicy.operatorNamespace: {home}")
    return good("operator", f"{name}, which watches {'this namespace' if watched else 'all namespaces'}")


def _watched(words: Sequence[str]) -> list[str]:
    for index, word in enumerate(words):
        if match := _WATCH.match(word):
            value = match[1] if match[1] is not None else words[index + 1] if index + 1 < len(words) else ""
            return [name for name in value.split(",") if name]
    return []


def check_rights(missing: Sequence[str], namespace: str) -> Check:
    """Check the rights that the commands need; `missing` are `verb resource` pairs."""
    if missing:
        fix = f"{APPLY_MANIFESTS} and adds you to the group opd-users, which its RoleBinding opd-user names"
        return bad("rights", f"not allowed in namespace {namespace}: {', '.join(missing)}", fix)
    return good("rights", f"may install, follow and delete runs in namespace {namespace}")


def check_namespace(tree: Tree | None, name: str) -> Check:
    """Check that the namespace exists; name what it enforces."""
    if tree is None:
        return bad("namespace", f"there is no namespace {name}", f"{APPLY_MANIFESTS}, or name another with --namespace")
    labels = tree.get("metadata", {}).get("labels", {})
    level = labels.get("pod-security.kubernetes.io/enforce", "none")
    is_selected = labels.get("opd/runs") == "true"
    policy = "" if is_selected else "; the suspend policy does not select it (label opd/runs: true)"
    return good("namespace", f"{name}, Pod Security {level}{policy}")


def mend(who: str, message: str) -> str:
    """Return the fix of a rejection by the API server's dry run; empty for others.

    Args:
        who: head, worker or submitter.
    """
    if "violates PodSecurity" in message and "IPC_LOCK" in message:
        return "use the namespace of manifests/cluster/overlays/rdma, or cluster.rdma.ipcLock: false with unlimited memlock"
    if "violates PodSecurity" in message:
        return f"change what the message names under cluster.{who}, or use a namespace that allows it"
    if " usage per " in message or "ratio per" in message or "must specify" in message:
        return f"a LimitRange or ResourceQuota of the namespace: set other cluster.{who}.requests and limits"
    if "deletionRules" in message and "jobStatus" in message:
        return (
            "set cluster.lifecycle: suspendable: a webhook (Kueue's up to 0.16) writes RayJobs with KubeRay 1.5's types"
        )
    return ""


def check_reference(
    item: Reference, tree: Tree | None, *, namespace: str, path: str, others: Collection[str] = ()
) -> Check:
    """Check that a named object exists, with the keys that the pods read; values are never read.

    Args:
        path: the key of the experiment that names it; empty without one.
        others: names of the existing objects of its kind.
    """
    name, kind = item.kind.removeprefix("Pull").lower(), item.kind
    shown = f"{name} {item.name}" + (f" ({path})" if path else "")
    if tree is None:
        near = f"; there are {', '.join(sorted(others))}" if others else ""
        return bad(name, f"{shown} is not in namespace {namespace}{near}", _make(item, namespace, path))
    if kind == "PullSecret" and tree.get("type") not in PULL_TYPES:
        fix = f"kubectl delete secret {item.name} -n {namespace}; {_make(item, namespace, path)}"
        return bad(name, f"{shown} is of type {tree.get('type')}: no image can be pulled with it", fix)
    held = {**(tree.get("data") or {}), **(tree.get("stringData") or {})}
    if missing := sorted(item.keys - held.keys()):
        has = ", ".join(sorted(held)) or "none"
        fix = f"add it (kubectl edit {name} {item.name} -n {namespace}), or name a key that it has"
        return bad(name, f"{shown} has no key {', '.join(missing)}; its keys are {has}", fix)
    return good(name, shown)


def _make(item: Reference, namespace: str, path: str) -> str:
    """Return the command that makes a named object."""
    if item.kind == "Secret":
        return make_secret(item.name, namespace, key=min(item.keys, default=""))
    if item.kind == "PullSecret":
        return make_pull_secret(item.name, namespace)
    key = min(item.keys, default="KEY")
    return _MAKE[item.kind].format(name=item.name, namespace=namespace, key=key, path=path or "the name")


def check_store_keys(name: str, secret: Tree, *, path: str) -> list[Check]:
    """Check that the Secret of an S3 store has a variable that S3's client reads."""
    held = secret.get("data") or {}
    if any(variable in held for variable in S3_VARIABLES):
        return []
    fix = f"give it AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: kubectl edit secret {name}"
    has = ", ".join(sorted(held)) or "none"
    return [bad("secret", f"secret {name} ({path}) has no credentials for S3; its keys are {has}", fix)]


def check_claim(item: Reference, claim: Tree, *, path: str, num_pods: int) -> Check:
    """Check that an existing claim is bound, and that `num_pods` pods of the run can mount it at once."""
    shown = f"claim {item.name}" + (f" ({path})" if path else "")
    phase = (claim.get("status") or {}).get("phase", "Pending")
    modes = set((claim.get("status") or {}).get("accessModes") or claim["spec"].get("accessModes") or ())
    shares = "ReadWriteMany" in modes or (item.is_read_only and "ReadOnlyMany" in modes)
    if not shares and num_pods > 1:
        text = f"{shown} is {', '.join(sorted(modes))}, and {num_pods} pods of the run mount it"
        fix = "use a claim with ReadWriteMany, of a StorageClass over a shared file system, unless one node holds all pods"
        return (bad if modes == {"ReadWriteOncePod"} else warning)("claim", text, fix)
    if phase != "Bound":
        fix = f"`kubectl describe pvc {item.name}` shows whether it waits for its first pod or for a volume"
        return warning("claim", f"{shown} is {phase}", fix)
    return good("claim", shown)


def check_class(claim: Tree, classes: Sequence[Tree], *, path: str) -> Check:
    """Check that the StorageClass of a claim that the run brings can make its volume."""
    spec = claim["spec"]
    names = ", ".join(sorted(item["metadata"]["name"] for item in classes)) or "(there is none)"
    chosen = spec.get("storageClassName")
    if chosen is None:
        default = [item for item in classes if (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"]
        if not default:
            text = "cluster.checkpoints.storageClass is not set, and no StorageClass is the default"
            return bad("storage", text, f"set it to one of: {names}")
        chosen = default[-1]["metadata"]["name"]
    found = next((item for item in classes if item["metadata"]["name"] == chosen), None)
    if found is None:
        return bad("storage", f"there is no StorageClass {chosen} ({path})", f"set {path} to one of: {names}")
    provisioner = found.get("provisioner", "")
    if "ReadWriteMany" in spec["accessModes"] and _is_block(found):
        shared = ", ".join(item["metadata"]["name"] for item in classes if not _is_block(item)) or "there is none"
        fix = f"set {path} to a class over a shared file system ({shared}), or cluster.checkpoints.ephemeral: true"
        text = f"StorageClass {chosen} ({provisioner}) makes volumes for one node at a time; the run's is ReadWriteMany"
        return bad("storage", text, fix)
    return good("storage", f"StorageClass {chosen} ({provisioner}) for {spec['resources']['requests']['storage']}")


def _is_block(storage_class: Tree) -> bool:
    provisioner = storage_class.get("provisioner", "")
    return provisioner in BLOCK_PROVISIONERS or provisioner.endswith(".rbd.csi.ceph.com")
