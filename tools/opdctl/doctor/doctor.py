"""Doctor's look at a cluster: KubeRay, the namespace, what this person may do there, then the run itself."""

from __future__ import annotations

from opdctl.chart.values import Experiment
from opdctl.doctor.checks import check_kuberay, check_namespace, check_rights
from opdctl.doctor.examination import Examination
from opdctl.doctor.looking import OneLook, look_at
from opdctl.doctor.report import Check, bad, good, unseen
from opdctl.kube.client import KubeApi
from opdctl.kube.errors import ClusterError

# What submit, status, logs, cancel and stage do.
RIGHTS = (
    ("create", "ray.io", "rayjobs", ""),
    ("delete", "ray.io", "rayjobs", ""),
    ("create", "", "configmaps", ""),
    ("create", "", "secrets", ""),
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("list", "", "events", ""),
    ("create", "batch", "jobs", ""),
)
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rayjobs.ray.io"


def check_cluster(api: KubeApi, item: Experiment | None, text: str) -> list[Check]:
    """Every check of a cluster.

    Args:
        item: the experiment, None to check for none in particular.
        text: what its chart renders, empty where it cannot.
    """
    api = OneLook(api)
    try:
        version = api.get("/version")
    except ClusterError as error:
        return [bad("cluster", str(error), error.fix)]
    out = [good("cluster", f"Kubernetes {version.get('gitVersion', '?')}, namespace {api.namespace}")]
    out += look_at("kuberay", lambda: [check_kuberay(api.find(CRD_PATH))])
    here = look_at(
        "namespace", lambda: [check_namespace(api.find(f"/api/v1/namespaces/{api.namespace}"), api.namespace)]
    )
    out += here + look_at("rights", lambda: [check_rights(_missing_rights(api), api.namespace)])
    if item is None or not text:
        return out
    if here[0].state == "MISSING":
        return [*out, unseen("run", "what the run needs of its namespace, which is not there", here[0].fix)]
    return [*out, *Examination(api, item, text).checks()]


def _missing_rights(api: KubeApi) -> list[str]:
    missing = []
    for verb, group, resource, part in RIGHTS:
        attributes = {
            "namespace": api.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": part,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not answer.get("status", {}).get("allowed"):
            missing.append(f"{verb} {resource}{'/' + part if part else ''}")
    return missing
