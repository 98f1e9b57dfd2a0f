"""Checks of `cluster` against a spec: pods that would wait for ever, be killed, or that KubeRay refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from opd.experiment.cluster import GIB, Cluster, Pods, RayPods, number, parse_cluster
from opd.experiment.errors import Problem, SpecError
from opd.experiment.kinds import FileSpec
from opd.experiment.pipeline import Sizes, all_sizes, runs_of
from opd.experiment.rules import check_sections, redacted

Problems = Iterator[Problem]
HEAD_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/created-by")
"""Labels by which KubeRay's head service finds its pod."""


def load_cluster(tree: Mapping[str, Any], spec: FileSpec, *, origin: str = "") -> Cluster:
    """Return the `cluster` section of an experiment's file, checked against the experiment; its image may be missing."""
    try:
        cluster, sizes = parse_cluster(tree), all_sizes(spec)
    except SpecError as error:
        raise SpecError(error.problems, origin=origin) from None
    found = [*check_sections(cluster), *_life(cluster), *_pods("head", cluster), *_pods("submitter", cluster)]
    if sizes:
        found += [*_pods("worker", cluster), *_workers(cluster, sizes)]
    problems = [redacted(problem).below("cluster") for problem in found]
    if problems := [*problems, *_tool_database(cluster, spec), *_store(cluster, spec)]:
        raise SpecError(problems, origin=origin)
    return cluster


def _life(cluster: Cluster) -> Problems:
    deadlines, queue = cluster.deadlines, cluster.queue
    if deadlines.active_seconds is not None and deadlines.pre_running_seconds is not None:
        least = deadlines.pre_running_seconds + cluster.stop.save_seconds
        if deadlines.active_seconds <= least:
            rule = f"no time is left to train after deadlines.preRunningSeconds + stop.saveSeconds = {least}"
            yield cluster.broken("deadlines.activeSeconds", rule, f"use more than {least}")
    if queue is not None and queue.manager == "kueue" and cluster.lifecycle != "suspendable":
        rule = "Kueue suspends runs, which KubeRay refuses for a RayJob with deletion rules"
        yield cluster.broken("lifecycle", rule, "set cluster.lifecycle: suspendable")
    if queue is not None and queue.manager == "volcano" and cluster.submission_mode != "K8sJobMode":
        rule = "KubeRay writes Volcano's gang metadata in K8sJobMode only"
        yield cluster.broken("submissionMode", rule, "set cluster.submissionMode: K8sJobMode")
    if not cluster.auth.token and not cluster.network_policy.enabled:
        rule = "Ray runs any code that reaches it: without token and network policy, every pod of the cluster could"
        yield cluster.broken("auth.token", rule, "leave cluster.auth.token or cluster.networkPolicy.enabled true")


def _store(cluster: Cluster, spec: FileSpec) -> Problems:
    url = spec.store.url
    if cluster.checkpoints.ephemeral and ("://" not in url or url.startswith("file://")):
        fix = "set store.url to s3://..., or cluster.checkpoints.ephemeral: false"
        yield spec.broken("store.url", "without a claim only an object store keeps results", fix)


def _tool_database(cluster: Cluster, spec: FileSpec) -> Problems:
    agents = [agent for run in runs_of(spec) if (agent := getattr(run, "agent", None)) is not None]
    given = cluster.tool_database and (cluster.tool_database.claim or cluster.tool_database.url)
    if given and not agents:
        rule, fix = "no tool uses it: the spec has no `agent`", "remove it, or add agent.database_dir"
        yield Problem(path="cluster.toolDatabase", value=given, rule=rule, fix=fix)
    for folder in sorted({agent.database_dir for agent in agents}) if given else ():
        if not folder.startswith("/"):
            rule = "the tool database is mounted there, so it is an absolute path"
            yield Problem(path="agent.database_dir", value=folder, rule=rule, fix="use /databases/NAME")


def _workers(cluster: Cluster, all_: list[Sizes]) -> Problems:
    """Check that pods on several nodes can share the volume, GPUs are counted once, and Ray's CPUs are enough."""
    group, resource, volume = cluster.worker, cluster.gpu.resource, cluster.checkpoints
    sizes, num_nodes = max(all_, key=lambda each: each.node_cpus), max(each.num_nodes for each in all_)
    if volume.access_mode == "ReadWriteOnce" and num_nodes > 1 and not volume.ephemeral and volume.claim is None:
        rule = f"all Ray pods mount the volume, ReadWriteOnce binds them to one node, and trainer.nnodes is {num_nodes}"
        fix = "use ReadWriteMany with a StorageClass that has it, or cluster.checkpoints.ephemeral: true"
        yield cluster.broken("checkpoints.accessMode", rule, fix)
    for field in ("limits", "requests"):
        if resource in getattr(group, field):
            rule = "GPUs are counted once, in trainer.gpus_per_node"
            yield Problem(path=f"worker.{field}", value=resource, rule=rule, fix="remove it here")
    # Ray schedules by the pod's CPUs: its limit, else its request, in whole ones (KubeRay rounds up).
    field = "limits" if "cpu" in group.limits else "requests"
    cpus = getattr(group, field).get("cpu", sizes.node_cpus)
    if sizes.device == "cuda" and math.ceil(number(cpus)) < sizes.node_cpus:
        rule = (
            f"Ray places a run by CPUs, and a node needs {sizes.node_cpus} (3 for each of {sizes.gpus_per_node} ranks)"
        )
        yield cluster.broken(f"worker.{field}.cpu", rule, f"use at least {sizes.node_cpus}, or remove the key")


def _pods(role: str, cluster: Cluster) -> Problems:
    group: Pods = getattr(cluster, role)
    for label in HEAD_LABELS:
        if label in group.labels or label in cluster.labels:
            rule = "KubeRay's head service finds its pod by this label"
            yield Problem(path=f"{role}.labels", value=label, rule=rule, fix="use another label")
    for name, request in sorted(group.requests.items()):
        if name in group.limits and number(request) > number(group.limits[name]):
            rule = f"a request is at most its limit, which is {group.limits[name]}"
            yield cluster.broken(f"{role}.requests.{name}", rule, f"lower it, or raise cluster.{role}.limits.{name}")
    memory = group.limits.get("memory", group.requests.get("memory"))
    if isinstance(group, RayPods) and memory is not None and number(memory) < group.shm_gib * GIB:
        rule = f"/dev/shm counts against the memory limit, which is {memory}"
        yield cluster.broken(f"{role}.shmGib", rule, f"lower it, or raise cluster.{role}.limits.memory")
