"""Checks of `cluster` against a spec: pods that would wait for ever, be killed, or that KubeRay refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from opd.experiment.cluster import Cluster, number, parse_cluster
from opd.experiment.errors import Problem, SpecError
from opd.experiment.kinds import FileSpec
from opd.experiment.pipeline import Sizes, all_sizes, runs_of
from opd.experiment.rules import check_sections


def load_cluster(tree: Mapping[str, Any], spec: FileSpec, *, origin: str = "") -> Cluster:
    """Return the `cluster` section of a file, checked against its experiment; the image may be missing."""
    try:
        cluster, sizes = parse_cluster(tree), all_sizes(spec)
    except SpecError as error:
        raise SpecError(error.problems, origin=origin) from None
    found = [*check_sections(cluster), *(_workers(cluster, sizes) if sizes else ())]
    if problems := [*(problem.below("cluster") for problem in found), *_places(cluster, spec)]:
        raise SpecError(problems, origin=origin)
    return cluster


def _places(cluster: Cluster, spec: FileSpec) -> Iterator[Problem]:
    """Check that results are kept, and that the tool database is mounted where a run reads it."""
    url, database = spec.store.url, cluster.tool_database
    if cluster.checkpoints.ephemeral and ("://" not in url or url.startswith("file://")):
        fix = "set store.url to s3://..., or cluster.checkpoints.ephemeral: false"
        yield spec.broken("store.url", "without a claim only an object store keeps results", fix)
    agents = [agent for run in runs_of(spec) if (agent := getattr(run, "agent", None)) is not None]
    given = database and (database.claim or database.url)
    if given and not agents:
        rule, fix = "no tool uses it: the spec has no `agent`", "remove it, or add agent.database_dir"
        yield Problem(path="cluster.toolDatabase", value=given, rule=rule, fix=fix)
    for folder in sorted({agent.database_dir for agent in agents}) if given else ():
        if not folder.startswith("/"):
            rule = "the tool database is mounted there, so it is an absolute path"
            yield Problem(path="agent.database_dir", value=folder, rule=rule, fix="use /databases/NAME")


def _workers(cluster: Cluster, all_: list[Sizes]) -> Iterator[Problem]:
    """Check that pods on several nodes can share the volume, and that Ray's CPUs are enough."""
    group, volume = cluster.worker, cluster.checkpoints
    sizes, num_nodes = max(all_, key=lambda each: each.node_cpus), max(each.num_nodes for each in all_)
    if volume.access_mode == "ReadWriteOnce" and num_nodes > 1 and not volume.ephemeral and volume.claim is None:
        rule = f"all Ray pods mount the volume, ReadWriteOnce binds them to one node, and trainer.nnodes is {num_nodes}"
        fix = "use ReadWriteMany with a StorageClass that has it, or cluster.checkpoints.ephemeral: true"
        yield cluster.broken("checkpoints.accessMode", rule, fix)
    # Ray schedules by the pod's CPUs: its limit, else its request, in whole ones (KubeRay rounds up).
    field, least = "limits" if "cpu" in group.limits else "requests", sizes.node_cpus
    cpus = getattr(group, field).get("cpu", least)
    if sizes.device == "cuda" and math.ceil(number(cpus)) < least:
        rule = f"Ray places a run by CPUs, and a node needs {least} (3 for each of {sizes.gpus_per_node} ranks)"
        yield cluster.broken(f"worker.{field}.cpu", rule, f"use at least {least}, or remove the key")
