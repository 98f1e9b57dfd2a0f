"""Preconditions of a run in a cluster: KubeRay, the namespace, rights, and the objects that pods name.

A check that may not read does not stop the others.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from opd.experiment import SpecError, dump_spec
from opd.store.access import address_of
from opdctl.chart.values import Experiment
from opdctl.console import ToolError
from opdctl.kube.client import CLASSES, DEFAULT_CLASS, HTTP_FORBIDDEN, KUEUE, ClusterError, KubeApi
from opdctl.kube.objects import CLAIMS, CONFIG_MAPS, PULL_KEY, SECRETS, References, Rendered, dry_run
from opdctl.kube.rayjob import QUEUE_LABEL

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
# Each of them is a way to S3 that its client finds in the environment.
S3_VARIABLES = frozenset({
    "AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
})  # fmt: skip
# (verb, group, resource, subresource) of submit, status, logs and cancel.
RIGHTS = (
    ("create", "ray.io", "rayjobs", ""), ("delete", "ray.io", "rayjobs", ""), ("create", "", "configmaps", ""),
    ("create", "", "secrets", ""), ("list", "", "pods", ""), ("get", "", "pods", "log"), ("list", "", "events", ""),
    ("create", "batch", "jobs", ""),
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
    except (ToolError, SpecError) as error:
        if isinstance(error, ClusterError) and error.status == HTTP_FORBIDDEN:
            return Check(name, UNSEEN, str(error), SEES)
        return Check(name, MISSING, str(error), getattr(error, "fix", "mend the keys named above"))


def check_cluster(api: KubeApi, item: Experiment | None, text: str) -> list[Check]:
    """Make every check of a cluster.

    Args:
        item: the experiment; None means no experiment in particular.
        text: its rendered chart; empty where the chart rejects it.
    """
    where = f"namespace {api.namespace}"
    out = [checked("cluster", lambda: f"Kubernetes {api.get('/version')['gitVersion']}, {where}")]
    if out[0].state != OK:
        return out
    looks = (("kuberay", find_kuberay), ("namespace", find_namespace), ("rights", find_rights))
    out += [checked(name, partial(look, api)) for name, look in looks]
    if item is None or not text or out[2].state == MISSING:
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
            *check_named(api, [(item, rendered)])]  # fmt: skip


def find_kuberay(api: KubeApi) -> str:
    """Check that KubeRay is installed and new enough, by its CRD."""
    crd = api.find(CRD_PATH)
    if crd is None:
        raise ToolError("there is no CRD rayjobs.ray.io: KubeRay is not installed", fix=INSTALL_KUBERAY)
    tree: Any = next((item for item in crd["spec"]["versions"] if item["name"] == "v1"), {})
    for key in ("schema", "openAPIV3Schema", "properties", "spec", "properties"):
        tree = tree.get(key, {})
    if NEWEST_FIELD not in tree:
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


def check_named(api: KubeApi, runs: Sequence[tuple[Experiment, Rendered]]) -> list[Check]:
    """Check the objects that rendered runs name, each once: queues, storage classes, Secrets, claims, accounts."""
    needed: References = {}
    queues, classes = dict[str, None](), dict[str, None]()
    for _, rendered in runs:
        for at, keys in rendered.references().items():
            needed[at] = needed.get(at, frozenset()) | keys
        if queue := rendered.job["metadata"]["labels"].get(QUEUE_LABEL):
            queues[queue] = None
        for tree in rendered.objects:
            if tree["kind"] == "PersistentVolumeClaim":
                classes[tree["spec"].get("storageClassName", "")] = None
    item = runs[0][0]
    cluster = item.values.get("cluster")
    at_store = address_of(dump_spec(item.spec))
    is_s3 = at_store is not None and at_store.url.startswith("s3://")
    out = [checked("queue", partial(find_queue, api, queue)) for queue in queues]
    out += [checked("storage", partial(find_class, api, name, path=_path_of(cluster, name))) for name in classes]
    for (resource, name), keys in needed.items():
        path = _path_of(cluster, name)
        look = partial(
            find_object, api, resource, name, keys, path=path, is_s3=is_s3 and path == "cluster.secrets.store"
        )
        out.append(checked(_singular(resource), look))
    return out


def find_queue(api: KubeApi, name: str) -> str:
    """Check that a Kueue queue exists; Volcano's queues are not read."""
    group = api.find(f"/apis/{KUEUE}")
    if group is None:
        fix = "an admin installs it, with its RayJob integration, or drop cluster.queue"
        raise ToolError("Kueue is not installed", fix=fix)
    queues = f"/apis/{group['preferredVersion']['groupVersion']}/namespaces/{api.namespace}/localqueues"
    others = sorted(item["metadata"]["name"] for item in api.list(queues))
    if name not in others:
        there = f"there is {', '.join(others)}" if others else "there is none"
        fix = "correct cluster.queue.name, or have the queue made: manifests/cluster/components/kueue"
        raise ToolError(f"there is no LocalQueue {name} in namespace {api.namespace}: {there}", fix=fix)
    return f"LocalQueue {name}"


def find_class(api: KubeApi, chosen: str, *, path: str) -> str:
    """Check that the StorageClass of a claim that the run brings exists; empty means the default class."""
    classes = api.list(CLASSES)
    names = ", ".join(sorted(item["metadata"]["name"] for item in classes)) or "(there is none)"
    notes: list[Mapping[str, str]] = [item["metadata"].get("annotations") or {} for item in classes]
    if not chosen and not any(note.get(DEFAULT_CLASS) == "true" for note in notes):
        text = "cluster.checkpoints.storageClass is not set, and no StorageClass is the default"
        raise ToolError(text, fix=f"set it to one of: {names}")
    if chosen and all(item["metadata"]["name"] != chosen for item in classes):
        raise ToolError(f"there is no StorageClass {chosen} ({path})", fix=f"set {path} to one of: {names}")
    return f"StorageClass {chosen}" if chosen else "the default StorageClass"


def find_object(api: KubeApi, resource: str, name: str, keys: Set[str], *, path: str = "", is_s3: bool = False) -> str:
    """Check that a named object exists, with the keys that the pods read; values are never read.

    Args:
        path: the key of the experiment that names it; empty without one.
        is_s3: it is the Secret of an S3 store, whose keys are variables.
    """
    kind, namespace, tree = _singular(resource), api.namespace, api.find(api.path(resource, name))
    shown = f"{kind} {name}" + (f" ({path})" if path else "")
    if tree is None:
        others = [one["metadata"]["name"] for one in api.list(api.path(resource))] if resource == CLAIMS else []
        near = f"; there are {', '.join(sorted(others))}" if others else ""
        fix = _make(resource, name, min(keys, default=""), namespace, path)
        raise ToolError(f"{shown} is not in namespace {namespace}{near}", fix=fix)
    held = {**(tree.get("data") or {}), **(tree.get("stringData") or {})}
    has = ", ".join(sorted(held)) or "none"
    if missing := sorted(keys - held.keys()):
        fix = f"add it (kubectl edit {kind} {name} -n {namespace}), or name a key that it has"
        raise ToolError(f"{shown} has no key {', '.join(missing)}; its keys are {has}", fix=fix)
    if is_s3 and not S3_VARIABLES & held.keys():
        fix = f"give it AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: kubectl edit secret {name} -n {namespace}"
        raise ToolError(f"{shown} has no credentials for S3; its keys are {has}", fix=fix)
    return shown


def _singular(resource: str) -> str:
    return resource.removesuffix("s").replace("persistentvolume", "")


def _make(resource: str, name: str, key: str, namespace: str, path: str) -> str:
    """Return the command that makes a named object; a Secret without a key gives its keys as variables."""
    if resource == CLAIMS:
        return f"apply manifests/cluster with components/claims (manifests/stage.yaml fills it), or correct {path or 'the name'}"
    words = {
        CONFIG_MAPS: f"configmap {name} -n {namespace} --from-literal={key or 'KEY'}=...",
        SECRETS: f"secret generic {name} -n {namespace} --from-file={key}=...   # a file without a line break",
    }.get(resource, f"serviceaccount {name} -n {namespace}")
    if resource == SECRETS and key == PULL_KEY:
        words = f"secret docker-registry {name} -n {namespace} --docker-server=... --docker-username=... --docker-password=..."
    elif resource == SECRETS and not key:
        words = f"secret generic {name} -n {namespace} --from-env-file=store.env"
        words += "   # lines NAME=VALUE: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
    return f"kubectl create {words}"


def _path_of(tree: Any, word: str, path: str = "cluster") -> str:
    """Return the dotted path in `cluster` whose value is this word; empty without any."""
    if tree == word:
        return path if word else ""
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return next((found for key, value in items if (found := _path_of(value, word, f"{path}.{key}"))), "")
