"""Checks of `cluster` against a spec by its tables of rules, the rules of `podSpec`, and the requests of pods; nothing is rendered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from opd.config.cluster import Cluster, RunCluster, parse_cluster
from opd.config.cluster.base import KubeObject, Resources
from opd.config.cluster.pod_rules import POD_RULES, ROLES
from opd.config.cluster.pods import RayPods
from opd.config.cluster.run_rules import RUN_RULES
from opd.config.errors import Problem, SpecError
from opd.config.kinds import ConvertSpec, FileSpec
from opd.config.needs import NodeNeeds, needs
from opd.config.pipeline import runs_of
from opd.config.rule import broken

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

POD_SPEC_RULE = "Pod Security `restricted` or the pods' identity rests on it, so podSpec leaves it alone"
POD_SPEC_FIX = (
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
                yield Problem(path=f"{key}.unset.{index}", value=path, rule=POD_SPEC_RULE, fix=POD_SPEC_FIX)
    if not accept_unrestricted:
        for path, value in _guarded(pod_spec, key):
            yield Problem(path=path, value=value, rule=POD_SPEC_RULE, fix=POD_SPEC_FIX)


def _guarded(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict | list):
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if key in GUARDED:
            yield f"{path}.{key}", value
        else:
            yield from _guarded(value, f"{path}.{key}")


def resources(pods: RayPods, needed: NodeNeeds) -> tuple[Resources, Resources]:
    """Requests and limits. Of CPU and memory alike a request that is missing is the limit, then what is needed; the memory
    limit that is missing is the request; CPUs have no limit unless one is given."""
    memory = f"{math.ceil(needed.memory_gib + pods.shm_gib)}Gi"
    own = {"cpu": pods.limits.get("cpu", needed.cpus), "memory": pods.limits.get("memory", memory)}
    requests = {**own, **pods.requests}
    return requests, {"memory": requests["memory"], **pods.limits}


RULES = (*RUN_RULES, *POD_RULES)


def load_cluster(tree: Mapping[str, Any], spec: FileSpec, *, origin: str = "") -> Cluster:
    """The `cluster` section of an experiment's file, checked against the experiment.

    Raises:
        SpecError: every problem of it.
    """
    try:
        cluster = parse_cluster(tree, spec.kind)
    except SpecError as error:
        raise SpecError(error.problems, origin=origin) from None
    if problems := list(_problems(cluster, spec)):
        raise SpecError(problems, origin=origin)
    return cluster


def names(cluster: Cluster, spec: FileSpec) -> dict[str, Any]:
    """What the rules of `cluster` may speak of: every key of the file, and `pods`.

    A pipeline counts as a run of a kind with workers, where one of its stages has some.
    """
    kinds = [run.kind for run in runs_of(spec) if not isinstance(run, ConvertSpec)]
    return {
        **spec.model_dump(mode="json"),
        "kind": kinds[0] if kinds else "convert",
        "cluster": cluster.model_dump(mode="json", by_alias=True),
        "pods": _pods(cluster, spec),
    }


def _problems(cluster: Cluster, spec: FileSpec) -> Iterator[Problem]:
    named = names(cluster, spec)
    yield from broken((rule for rule in RULES if not rule.chart_only), named)
    for role, kinds in ROLES.items():
        if named["kind"] in kinds:
            yield from check_pod_spec(
                role, getattr(cluster, role).pod_spec, accept_unrestricted=cluster.pod_security.accept_unrestricted
            )


def _pods(cluster: Cluster, spec: FileSpec) -> dict[str, Any]:
    """What `pods` is in the rules; `opd.pods` in the charts is the same."""
    needed = needs(spec)
    groups = {"head": (cluster.head, needed.head)}
    if isinstance(cluster, RunCluster) and needed.worker is not None:
        groups["worker"] = (cluster.worker, needed.worker)
    agents = [agent for run in runs_of(spec) if (agent := getattr(run, "agent", None)) is not None]
    pods: dict[str, Any] = {
        "submitter": {"requests": cluster.submitter.requests, "limits": cluster.submitter.limits},
        "databases": sorted({agent.database_dir for agent in agents}),
    }
    for role, (group, needs_of_one) in groups.items():
        requests, limits = resources(group, needs_of_one)
        pods[role] = {
            "requests": requests,
            "limits": limits,
            "cpus": needs_of_one.cpus,
            "leastGib": needs_of_one.least_gib,
            "byPart": needs_of_one.cpus_by_part,
            "onGpu": needs_of_one.on_gpu,
            "count": needed.num_nodes if role == "worker" else 1,
        }
    return pods
