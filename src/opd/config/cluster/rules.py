"""Checks `cluster` against a spec by its tables of rules, as the charts do: nothing has to be rendered for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opd.config.cluster import Cluster, RunCluster, parse_cluster
from opd.config.cluster.pod_rules import POD_RULES, ROLES
from opd.config.cluster.podspec import check_pod_spec
from opd.config.cluster.resources import resources
from opd.config.cluster.run_rules import RUN_RULES
from opd.config.errors import Problem, SpecError
from opd.config.kinds import ConvertSpec, FileSpec
from opd.config.needs import needs
from opd.config.pipeline import runs_of
from opd.config.rule import broken

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
