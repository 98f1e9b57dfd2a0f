"""Preconditions of a run in a cluster: KubeRay, the namespace, rights, and the objects that pods name.

A check that may not read does not stop the others.
"""

import json
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial

from opd.errors import StoreError, StoreUnavailable
from opd.experiment import SpecError
from opdctl.console import ToolError
from opdctl.kube.client import CLASSES, DEFAULT_CLASS, HTTP_FORBIDDEN, ClusterError, KubeApi
from opdctl.kube.objects import CLAIMS, PULL_KEY, QUEUES, SECRETS, References, Rendered, dry_run

APPLY_MANIFESTS = "an admin applies manifests/cluster"
SEES = f"{APPLY_MANIFESTS}: the Role opd-user and the ClusterRole opd-user-view allow it"
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rayjobs.ray.io"
# The field of the RayJob CRD that came with KubeRay 1.6: the CRD carries no version.
NEWEST_FIELD = "preRunningDeadlineSeconds"
MIN_KUBERAY = "1.6"
INSTALL_KUBERAY = (
    f"an admin installs the operator, {MIN_KUBERAY} or newer: helm install kuberay-operator kuberay/kuberay-operator "
    "--version 1.6.1 -n kuberay-system --create-namespace -f manifests/cluster/operator-values.yaml"
)
FORWARD = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in this shell; a server inside the cluster is reached by a forwarded "
    "port and AWS_ENDPOINT_URL"
)
MEND_STORE = "check the URL, the credentials in the environment and that the bucket exists"
_MAKE = {
    CLAIMS: "apply manifests/cluster with components/claims (manifests/stage.yaml fills it), or correct the name",
    QUEUES: "correct cluster.queue.name, or an admin installs Kueue and makes it: manifests/cluster/components/kueue",
}
# (verb, group, resource, subresource) of submit, status, logs and cancel.
RIGHTS = (
    ("create", "ray.io", "rayjobs", ""), ("delete", "ray.io", "rayjobs", ""), ("create", "", "configmaps", ""),
    ("create", "", "secrets", ""), ("create", "", "services", ""), ("create", "batch", "jobs", ""),
    ("list", "", "pods", ""), ("get", "", "pods", "log"), ("list", "", "events", ""),
)  # fmt: skip
OK, WARNING, UNSEEN, MISSING = "ok", "warning", "not checked", "MISSING"


@dataclass(frozen=True)
class Check:
    """The outcome of one check; `fix` is empty where nothing needs a fix.

    Attributes:
        state: OK, WARNING (the run may start), UNSEEN (not to be checked from here), or MISSING (the run would not start).
    """

    name: str
    state: str
    message: str
    fix: str = ""


def checked(name: str, look: Callable[[], str]) -> Check:
    """Return the outcome of a check that returns what it found, or raises with the fix of what is missing."""
    try:
        return Check(name, OK, look())
    except StoreError as error:
        if isinstance(error, StoreUnavailable) or "credentials" in str(error):
            return Check(name, UNSEEN, f"not from this shell: {error}", FORWARD)
        return Check(name, MISSING, str(error), MEND_STORE)
    except (ToolError, SpecError) as error:
        if isinstance(error, ClusterError) and error.status == HTTP_FORBIDDEN:
            return Check(name, UNSEEN, str(error), SEES)
        return Check(name, MISSING, str(error), getattr(error, "fix", "mend the keys named above"))


def check_cluster(api: KubeApi, text: str) -> list[Check]:
    """Make every check of a cluster; `text` is a rendered chart, empty without an experiment that the chart takes."""
    looks = (("kuberay", find_kuberay), ("namespace", find_namespace), ("rights", find_rights))
    out = [checked(name, partial(look, api)) for name, look in looks]
    if not text or out[1].state == MISSING:
        return out
    rendered = Rendered(text)
    try:
        rejected, waiting = dry_run(api, rendered)
    except ClusterError as error:  # without an answer
        rejected, waiting = [error], []
    fix = "the run waits: for other runs to end, or a larger quota"
    tried = [Check("quota", WARNING, str(error), fix) for error in waiting]
    tried += [Check("admission", MISSING, str(error), error.fix) for error in rejected]
    return [*out, *(tried or [Check("admission", OK, "the API server takes every object and pod")]),
            *check_named(api, [rendered])]  # fmt: skip


def find_kuberay(api: KubeApi) -> str:
    """Check that KubeRay is installed and new enough, by its CRD."""
    crd = api.find(CRD_PATH)
    if crd is None:
        raise ToolError("there is no CRD rayjobs.ray.io: KubeRay is not installed", fix=INSTALL_KUBERAY)
    if f'"{NEWEST_FIELD}": {{' not in json.dumps(crd):
        text = f"the CRD rayjobs.ray.io has no field {NEWEST_FIELD}: older than {MIN_KUBERAY}"
        fix = f"an admin replaces the CRDs by KubeRay's of {MIN_KUBERAY} or newer with `kubectl replace`"
        raise ToolError(text, fix=fix)
    return f"RayJob v1 with {NEWEST_FIELD}: {MIN_KUBERAY} or newer"


def find_namespace(api: KubeApi) -> str:
    """Check that the namespace exists."""
    if api.find(f"/api/v1/namespaces/{api.namespace}") is None:
        fix = f"{APPLY_MANIFESTS}, or name another with --namespace"
        raise ToolError(f"there is no namespace {api.namespace}", fix=fix)
    return api.namespace


def find_rights(api: KubeApi) -> str:
    """Check the rights that the commands need."""
    missing = []
    for verb, group, resource, part in RIGHTS:
        words = {"namespace": api.namespace, "verb": verb, "group": group, "resource": resource, "subresource": part}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                  "spec": {"resourceAttributes": words}}  # fmt: skip
        answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not answer.get("status", {}).get("allowed"):
            missing.append(f"{verb} {resource}{'/' + part if part else ''}")
    if missing:
        fix = f"{APPLY_MANIFESTS} and adds you to the group opd-users, which its RoleBinding opd-user names"
        raise ToolError(f"not allowed in namespace {api.namespace}: {', '.join(missing)}", fix=fix)
    return f"may install, follow and delete runs in namespace {api.namespace}"


def check_named(api: KubeApi, runs: Sequence[Rendered]) -> list[Check]:
    """Check the objects that rendered runs name, each once: queues, storage classes, Secrets, claims, accounts."""
    needed: References = {}
    classes = dict[str, None]()
    for rendered in runs:
        for at, keys in rendered.references().items():
            needed[at] = needed.get(at, frozenset()) | keys
        for tree in rendered.objects:
            if tree["kind"] == "PersistentVolumeClaim":
                classes[tree["spec"].get("storageClassName", "")] = None
    out = [checked("storage", partial(find_class, api, name)) for name in classes]
    return out + [checked(_singular(at[0]), partial(find_object, api, *at, keys)) for at, keys in needed.items()]


def find_class(api: KubeApi, chosen: str) -> str:
    """Check that the StorageClass of a claim that the run brings exists; empty means the default class."""
    notes = {item["metadata"]["name"]: item["metadata"].get("annotations") or {} for item in api.list(CLASSES)}
    names = notes if chosen else {name: note for name, note in notes.items() if note.get(DEFAULT_CLASS) == "true"}
    if not names or (chosen and chosen not in names):
        fix = f"set cluster.checkpoints.storageClass to one of: {', '.join(sorted(notes)) or '(there is none)'}"
        raise ToolError(f"there is no StorageClass {chosen or 'that is the default'}", fix=fix)
    return f"StorageClass {chosen or min(names)}"


def find_object(api: KubeApi, resource: str, name: str, keys: Set[str]) -> str:
    """Check that a named object exists, with the keys that the pods read; values are never read."""
    shown, tree = f"{_singular(resource)} {name}", api.find(api.path(resource, name))
    if tree is None:
        form = {SECRETS: " docker-registry" if PULL_KEY in keys else " generic"}.get(resource, "")
        make = (
            f"kubectl create {_singular(resource)}{form} {name} -n {api.namespace} ...   # README.md has the arguments"
        )
        raise ToolError(f"{shown} is not in namespace {api.namespace}", fix=_MAKE.get(resource, make))
    held = {**(tree.get("data") or {}), **(tree.get("stringData") or {})}
    if missing := sorted(keys - held.keys()):
        fix = f"add it (kubectl edit {shown} -n {api.namespace}), or name a key that it has"
        has = ", ".join(sorted(held)) or "none"
        raise ToolError(f"{shown} has no key {', '.join(missing)}; its keys are {has}", fix=fix)
    return shown


def _singular(resource: str) -> str:
    return resource.removesuffix("s").replace("persistentvolume", "").replace("local", "")
