"""Doctor's checks of what a run's pods name and mount: Secrets and their keys, claims, storage classes."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Sequence

from opdctl.doctor.rendered import Reference
from opdctl.doctor.report import Check, bad, good, warning
from opdctl.doctor.selectors import Tree
from opdctl.kube.secrets import make_pull_secret, make_secret

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
PULL_TYPES = {"kubernetes.io/dockerconfigjson": ".dockerconfigjson", "kubernetes.io/dockercfg": ".dockercfg"}
# Storage that one node at a time mounts: the drivers of the clouds' disks, of node-local folders and of Ceph's block devices.
BLOCK_PROVISIONERS = (
    "ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com", "kubernetes.io/aws-ebs", "pd.csi.storage.gke.io", "kubernetes.io/gce-pd",
    "disk.csi.azure.com", "kubernetes.io/azure-disk", "rancher.io/local-path", "topolvm.io",
)  # fmt: skip
BLOCK_SUFFIXES = (".rbd.csi.ceph.com",)
# Any of them is a way to S3 that its client finds in the environment.
S3_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE", "AWS_CONFIG_FILE",
                "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")  # fmt: skip
_MAKE = {
    "ConfigMap": "kubectl create configmap {name} -n {namespace} --from-literal={key}=...",
    "ServiceAccount": "kubectl create serviceaccount {name} -n {namespace}",
    "Claim": "make it, or apply manifests/cluster with components/claims (`opdctl stage` fills it), or correct {path}",
}


def check_reference(
    item: Reference, tree: Tree | None, *, namespace: str, path: str, others: Collection[str] = ()
) -> list[Check]:
    """Whether a named object is there, with the keys that are read of it; values are never looked at.

    Args:
        path: the key of the experiment that names it, empty where none does.
        others: names of the objects of its kind that there are.
    """
    name, kind = item.kind.removeprefix("Pull").lower(), item.kind
    said = f"{name} {item.name}" + (f" ({path})" if path else "")
    if tree is None:
        near = f"; there are {', '.join(sorted(others))}" if others else ""
        return [bad(name, f"{said} is not in namespace {namespace}{near}", _make(item, namespace, path))]
    if kind == "PullSecret" and tree.get("type") not in PULL_TYPES:
        fix = f"kubectl delete secret {item.name} -n {namespace}; {_make(item, namespace, path)}"
        return [bad(name, f"{said} is of type {tree.get('type')}: no image can be pulled with it", fix)]
    held = {**(tree.get("data") or {}), **(tree.get("stringData") or {})}
    if missing := sorted(item.keys - held.keys()):
        has = ", ".join(sorted(held)) or "none"
        fix = f"add it (kubectl edit {name} {item.name} -n {namespace}), or name the key that is there"
        return [bad(name, f"{said} has no key {', '.join(missing)}; its keys are {has}", fix)]
    return [good(name, said)]


def _make(item: Reference, namespace: str, path: str) -> str:
    """What makes a named object."""
    if item.kind == "Secret":
        return make_secret(item.name, namespace, key=min(item.keys, default=""))
    if item.kind == "PullSecret":
        return make_pull_secret(item.name, namespace)
    key = min(item.keys, default="KEY")
    return _MAKE[item.kind].format(name=item.name, namespace=namespace, key=key, path=path or "the name")


def check_store_keys(name: str, secret: Tree, *, path: str) -> list[Check]:
    """Whether the Secret of an S3 store holds anything that its client looks for: every key becomes a variable."""
    held = secret.get("data") or {}
    if any(variable in held for variable in S3_VARIABLES):
        return []
    fix = f"give it AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: kubectl edit secret {name}"
    has = ", ".join(sorted(held)) or "none"
    return [bad("secret", f"secret {name} ({path}) has no credentials for S3; its keys are {has}", fix)]


def check_pull_secret(name: str, secret: Tree, *, image: str) -> list[Check]:
    """Whether a pull secret speaks of the image's registry."""
    key = PULL_TYPES.get(secret.get("type", ""), "")
    try:
        tree = json.loads(base64.b64decode((secret.get("data") or {}).get(key, "")))
    except ValueError:
        return [
            bad(
                "secret", f"secret {name}: its {key} is no JSON", "make it again: kubectl create secret docker-registry"
            )
        ]
    servers = (tree.get("auths", tree) or {}) if isinstance(tree, dict) else {}
    known = {server.partition("://")[2] or server for server in servers}
    registry = image.partition("/")[0]
    hosts = {server.partition("/")[0].removeprefix("index.") for server in known}  # docker.io's is index.docker.io
    if registry.removeprefix("index.") in hosts or "." not in registry:
        return []
    fix = f"make it for --docker-server={registry}"
    return [
        warning(
            "secret",
            f"secret {name} is for {', '.join(sorted(known)) or 'no registry'}, the image is on {registry}",
            fix,
        )
    ]


def check_claim(claim: Tree, *, name: str, path: str, num_pods: int, nodes: Collection[str], is_read_only: bool,
                storage_class: Tree | None, knows_classes: bool) -> Check:  # fmt: skip
    """Whether an existing claim can be mounted by every pod that names it.

    Args:
        num_pods: pods of the run that mount it.
        nodes: those that the pods were placed on, empty where that is not known.
        storage_class: the claim's, None where there is none such.
    """
    said = f"claim {name}" + (f" ({path})" if path else "")
    spec, phase = claim.get("spec") or {}, (claim.get("status") or {}).get("phase", "Pending")
    modes = set((claim.get("status") or {}).get("accessModes") or spec.get("accessModes") or ())
    shares = "ReadWriteMany" in modes or (is_read_only and "ReadOnlyMany" in modes)
    if not shares and num_pods > 1 and (len(nodes) != 1 or modes == {"ReadWriteOncePod"}):
        text = f"{said} is {', '.join(sorted(modes))}: {num_pods} pods of the run mount it, on several nodes"
        return bad("claim", text, "use a claim with ReadWriteMany, of a StorageClass over a shared file system")
    if phase == "Bound":
        return good("claim", said)
    of = spec.get("storageClassName", "")
    if storage_class is not None and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer":
        return good("claim", f"{said} is {phase}: StorageClass {of} makes its volume with the first pod")
    if phase == "Pending" and storage_class is None and not knows_classes:
        return warning("claim", f"{said} is {phase}", "`kubectl describe pvc` says whether it waits for its first pod")
    why = (
        f"StorageClass {of} has made no volume for it"
        if storage_class is not None
        else f"there is no StorageClass {of!r}"
    )
    return bad(
        "claim", f"{said} is {phase}: {why}", f"kubectl describe pvc {name} says why; pods wait until it is Bound"
    )


def is_default(storage_class: Tree) -> bool:
    """Whether claims that name no StorageClass get this one."""
    return (storage_class["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"


def check_class(claim: Tree, classes: Sequence[Tree], *, path: str) -> Check:
    """Whether the StorageClass of a claim that the run brings can make its volume."""
    spec = claim["spec"]
    names = sorted(item["metadata"]["name"] for item in classes)
    wanted = spec.get("storageClassName")
    if wanted is None:
        default = [item for item in classes if is_default(item)]
        if not default:
            text = "cluster.checkpoints.storageClass is not set, and no StorageClass is the default"
            return bad("storage", text, f"set it to one of: {', '.join(names) or '(there is none)'}")
        wanted = default[-1]["metadata"]["name"]
    found = next((item for item in classes if item["metadata"]["name"] == wanted), None)
    if found is None:
        fix = f"set {path} to one of: {', '.join(names) or '(there is none)'}"
        return bad("storage", f"there is no StorageClass {wanted} ({path})", fix)
    provisioner = found.get("provisioner", "")
    if "ReadWriteMany" in spec["accessModes"] and _is_block(found):
        shared = [item["metadata"]["name"] for item in classes if not _is_block(item)]
        fix = f"set {path} to a class over a shared file system ({', '.join(shared) or 'there is none'}), or cluster.checkpoints.ephemeral: true"
        text = f"StorageClass {wanted} ({provisioner}) makes volumes for one node at a time; the run's is ReadWriteMany"
        return bad("storage", text, fix)
    return good("storage", f"StorageClass {wanted} ({provisioner}) for {spec['resources']['requests']['storage']}")


def _is_block(storage_class: Tree) -> bool:
    provisioner = storage_class.get("provisioner", "")
    return provisioner in BLOCK_PROVISIONERS or provisioner.endswith(BLOCK_SUFFIXES)
