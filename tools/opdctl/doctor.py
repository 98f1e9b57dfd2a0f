"""Preconditions of a run in a cluster: KubeRay, the namespace, rights, and the objects that pods name.

A check that may not read does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from opd.experiment import dump_spec
from opd.store.access import S3_PROTOCOLS, address_of
from opdctl.chart.values import Experiment
from opdctl.kube.client import CLASSES, DEFAULT_CLASS, HTTP_FORBIDDEN, KUEUE, ClusterError, KubeApi, Tree
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
    "-n kuberay-system --create-namespace -f manifests/cluster/operator-values.yaml"
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


def check_cluster(api: KubeApi, item: Experiment | None, text: str) -> list[Check]:
    """Make every check of a cluster.

    Args:
        item: the experiment; None means no experiment in particular.
        text: its rendered chart; empty where the chart rejects it.
    """
    out = _read("cluster", lambda: [_version(api)])
    if out[0].state != OK:
        return out
    here = _read("namespace", lambda: [check_namespace(api.find(f"/api/v1/namespaces/{api.namespace}"), api.namespace)])
    out += _read("kuberay", lambda: [check_kuberay(api.find(CRD_PATH))])
    out += here + _read("rights", lambda: [check_rights(_missing_rights(api), api.namespace)])
    if item is None or not text or here[0].state == MISSING:
        return out
    rendered = Rendered(text)
    return [*out, *_read("admission", lambda: _admission(api, rendered)), *check_named(api, [(item, rendered)])]


def _read(name: str, checks: Callable[[], list[Check]]) -> list[Check]:
    """Make checks; return one line with the reason if nothing can be read."""
    try:
        return checks()
    except ClusterError as error:
        is_unseen = error.status == HTTP_FORBIDDEN
        return [Check(name, UNSEEN if is_unseen else MISSING, str(error), SEES if is_unseen else error.fix)]


def _version(api: KubeApi) -> Check:
    return Check("cluster", OK, f"Kubernetes {api.get('/version').get('gitVersion', '?')}, namespace {api.namespace}")


def check_kuberay(crd: Tree | None) -> Check:
    """Check that KubeRay is installed and new enough, by its CRD."""
    if crd is None:
        return Check("kuberay", MISSING, "there is no CRD rayjobs.ray.io: KubeRay is not installed", INSTALL_KUBERAY)
    tree: Any = next((item for item in crd["spec"]["versions"] if item["name"] == "v1"), {})
    for key in ("schema", "openAPIV3Schema", "properties", "spec", "properties"):
        tree = tree.get(key, {})
    if NEWEST_FIELD not in tree:
        text = f"the CRD rayjobs.ray.io has no field {NEWEST_FIELD}: older than {MIN_KUBERAY}"
        fix = f"an admin replaces the CRDs by KubeRay's of {MIN_KUBERAY} or newer with `kubectl replace`"
        return Check("kuberay", MISSING, text, fix)
    return Check("kuberay", OK, f"RayJob v1 with {NEWEST_FIELD}: {MIN_KUBERAY} or newer")


def check_namespace(tree: Tree | None, name: str) -> Check:
    """Check that the namespace exists."""
    if tree is None:
        fix = f"{APPLY_MANIFESTS}, or name another with --namespace"
        return Check("namespace", MISSING, f"there is no namespace {name}", fix)
    return Check("namespace", OK, name)


def check_rights(missing: Sequence[str], namespace: str) -> Check:
    """Check the rights that the commands need; `missing` are `verb resource` pairs."""
    if missing:
        fix = f"{APPLY_MANIFESTS} and adds you to the group opd-users, which its RoleBinding opd-user names"
        return Check("rights", MISSING, f"not allowed in namespace {namespace}: {', '.join(missing)}", fix)
    return Check("rights", OK, f"may install, follow and delete runs in namespace {namespace}")


def _missing_rights(api: KubeApi) -> list[str]:
    missing = []
    for verb, group, resource, part in RIGHTS:
        words = {"namespace": api.namespace, "verb": verb, "group": group, "resource": resource, "subresource": part}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                  "spec": {"resourceAttributes": words}}  # fmt: skip
        answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not answer.get("status", {}).get("allowed"):
            missing.append(f"{verb} {resource}{'/' + part if part else ''}")
    return missing


def _admission(api: KubeApi, rendered: Rendered) -> list[Check]:
    rejected, waiting = dry_run(api, rendered)
    out = [
        Check("quota", WARNING, str(error), "the run waits: for other runs to end, or a larger quota")
        for error in waiting
    ]
    out += [Check("admission", MISSING, str(error), error.fix) for error in rejected]
    return out or [Check("admission", OK, "the API server takes every object and pod")]


def check_named(api: KubeApi, runs: Sequence[tuple[Experiment, Rendered]]) -> list[Check]:
    """Check the objects that rendered runs name, each once: queues, storage classes, Secrets, claims, accounts."""
    needed: References = {}
    queues, classes = dict[str, None](), dict[str | None, None]()
    for _, rendered in runs:
        for at, keys in rendered.references().items():
            needed[at] = needed.get(at, frozenset()) | keys
        if queue := rendered.job["metadata"]["labels"].get(QUEUE_LABEL):
            queues[queue] = None
        for tree in rendered.objects:
            if tree["kind"] == "PersistentVolumeClaim":
                classes[tree["spec"].get("storageClassName")] = None
    item = runs[0][0]
    out = [check for queue in queues for check in _read("queue", partial(_queue, api, queue))]
    out += _read("storage", lambda: _classes(api, list(classes), item)) if classes else []
    for (resource, name), keys in needed.items():
        out += _read(resource.removesuffix("s"), partial(_reference, api, item, resource, name, keys))
    return out


def _queue(api: KubeApi, name: str) -> list[Check]:
    """Check that a Kueue queue exists; Volcano's queues are not read."""
    group = api.find(f"/apis/{KUEUE}")
    if group is None:
        fix = "an admin installs it, with its RayJob integration, or drop cluster.queue"
        return [Check("queue", MISSING, "Kueue is not installed", fix)]
    queues = f"/apis/{group['preferredVersion']['groupVersion']}/namespaces/{api.namespace}/localqueues"
    others = sorted(item["metadata"]["name"] for item in api.list(queues))
    if name not in others:
        there = f"there is {', '.join(others)}" if others else "there is none"
        fix = "correct cluster.queue.name, or have the queue made: manifests/cluster/components/kueue"
        return [Check("queue", MISSING, f"there is no LocalQueue {name} in namespace {api.namespace}: {there}", fix)]
    return [Check("queue", OK, f"LocalQueue {name}")]


def _classes(api: KubeApi, chosen: Sequence[str | None], item: Experiment) -> list[Check]:
    there = api.list(CLASSES)
    return [check_class(name, there, path=_where(item, name or "")) for name in chosen]


def check_class(chosen: str | None, classes: Sequence[Tree], *, path: str) -> Check:
    """Check that the StorageClass of a claim that the run brings exists; None means the default class."""
    names = ", ".join(sorted(item["metadata"]["name"] for item in classes)) or "(there is none)"
    notes: list[Mapping[str, str]] = [item["metadata"].get("annotations") or {} for item in classes]
    if chosen is None and not any(note.get(DEFAULT_CLASS) == "true" for note in notes):
        text = "cluster.checkpoints.storageClass is not set, and no StorageClass is the default"
        return Check("storage", MISSING, text, f"set it to one of: {names}")
    if chosen is not None and all(item["metadata"]["name"] != chosen for item in classes):
        text = f"there is no StorageClass {chosen} ({path})"
        return Check("storage", MISSING, text, f"set {path} to one of: {names}")
    return Check("storage", OK, f"StorageClass {chosen}" if chosen else "the default StorageClass")


def _reference(api: KubeApi, item: Experiment, resource: str, name: str, keys: frozenset[str]) -> list[Check]:
    tree = api.find(api.path(resource, name))
    is_asked = tree is None and resource == CLAIMS
    others = [one["metadata"]["name"] for one in api.list(api.path(resource))] if is_asked else []
    path, at = _where(item, name), address_of(dump_spec(item.spec))
    is_s3 = path == "cluster.secrets.store" and at is not None and at.url.partition("://")[0] in S3_PROTOCOLS
    return [check_reference(resource, name, keys, tree, namespace=api.namespace, path=path, others=others, is_s3=is_s3)]


def check_reference(
    resource: str, name: str, keys: Collection[str], tree: Tree | None, *, namespace: str, path: str = "",
    others: Collection[str] = (), is_s3: bool = False,
) -> Check:  # fmt: skip
    """Check that a named object exists, with the keys that the pods read; values are never read.

    Args:
        path: the key of the experiment that names it; empty without one.
        others: names of the existing objects of its kind.
        is_s3: it is the Secret of an S3 store, whose keys are variables.
    """
    kind = resource.removesuffix("s").replace("persistentvolume", "")
    shown = f"{kind} {name}" + (f" ({path})" if path else "")
    if tree is None:
        near = f"; there are {', '.join(sorted(others))}" if others else ""
        fix = _make(resource, name, min(keys, default=""), namespace, path)
        return Check(kind, MISSING, f"{shown} is not in namespace {namespace}{near}", fix)
    held = {**(tree.get("data") or {}), **(tree.get("stringData") or {})}
    has = ", ".join(sorted(held)) or "none"
    if missing := sorted(keys - held.keys()):
        fix = f"add it (kubectl edit {kind} {name} -n {namespace}), or name a key that it has"
        return Check(kind, MISSING, f"{shown} has no key {', '.join(missing)}; its keys are {has}", fix)
    if is_s3 and not S3_VARIABLES & held.keys():
        fix = f"give it AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: kubectl edit secret {name} -n {namespace}"
        return Check(kind, MISSING, f"{shown} has no credentials for S3; its keys are {has}", fix)
    return Check(kind, OK, shown)


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


def _where(item: Experiment, word: str) -> str:
    """Return the dotted path in `cluster` whose value is this word; empty without any."""
    return _path_of(item.values.get("cluster"), word, "cluster") if word else ""


def _path_of(tree: Any, word: str, path: str) -> str:
    if tree == word:
        return path
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return next((found for key, value in items if (found := _path_of(value, word, f"{path}.{key}"))), "")
