"""Checks of `cluster` against a spec, and the requests of pods: what would wait for ever, be killed, or fail in KubeRay."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opd.config.cluster import Cluster, KubeObject, Pods, RayPods, Resources, RunCluster, parse_cluster
from opd.config.errors import Problem, SpecError
from opd.config.kinds import AnySpec, ConvertSpec, FileSpec, OpdSpec, SftSpec
from opd.config.needs import NodeNeeds, needs
from opd.config.pipeline import runs_of
from opd.config.quantity import GIB, number
from opd.config.rules import check_sections, redacted
from opd.config.sections import Agent

Problems = Iterator[Problem]
HEAD_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/created-by")
"""Labels by which KubeRay's head service finds its pod."""

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
    """Yield every guarded field that is set or dropped, and an `unset` that is no list of paths."""
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
    """Return requests and limits.

    A missing request of CPU or memory is its limit, or else the run's need. A missing memory limit is the request.
    """
    memory = f"{math.ceil(needed.memory_gib + pods.shm_gib)}Gi"
    own = {"cpu": pods.limits.get("cpu", needed.cpus), "memory": pods.limits.get("memory", memory)}
    requests = {**own, **pods.requests}
    return requests, {"memory": requests["memory"], **pods.limits}


def load_cluster(tree: Mapping[str, Any], spec: FileSpec, *, origin: str = "") -> Cluster:
    """Return the `cluster` section of an experiment's file, checked against the experiment.

    Raises:
        SpecError: every problem of it; `image_problems` checks the image, which may still be missing.
    """
    try:
        cluster = parse_cluster(tree, spec.kind)
    except SpecError as error:
        raise SpecError(error.problems, origin=origin) from None
    if problems := list(cluster_problems(cluster, spec)):
        raise SpecError(problems, origin=origin)
    return cluster


def image_problems(cluster: Cluster) -> Problems:
    """Yield a problem for an image that is missing, or named by a tag."""
    build = "images/build.sh trainer --push REGISTRY"
    if not cluster.image.ref:
        rule, fix = (
            "the image is required and has no default",
            f"run `{build}`: it prints the reference to use, with its digest",
        )
        yield Problem(path="cluster.image.ref", rule=rule, fix=fix)
    for key, ref in (("image.ref", cluster.image.ref), ("submitter.image", cluster.submitter.image)):
        if ref and not cluster.image.local and not re.search(r"@sha256:[0-9a-f]{64}$", ref):
            rule = "an image is named by its digest, so that every pod and every attempt runs the same one"
            fix = f"use the reference that `{build}` prints, or cluster.image.local: true for an image loaded onto the nodes"
            yield Problem(path=f"cluster.{key}", value=ref, rule=rule, fix=fix)


def cluster_problems(cluster: Cluster, spec: FileSpec) -> Problems:
    """Yield every broken rule of the section, within its own sections first."""
    runs = runs_of(spec)
    workers = (
        cluster if isinstance(cluster, RunCluster) and any(not isinstance(run, ConvertSpec) for run in runs) else None
    )
    needed = needs(spec)
    for problem in check_sections(cluster):
        yield redacted(problem).below("cluster")
    yield from _life(cluster)
    yield from _volumes(cluster, spec, num_workers=needed.num_nodes)
    yield from _ray_pods("head", cluster.head, needed.head, cluster)
    if workers is not None and needed.worker is not None:
        yield from _workers(workers, needed.worker)
        yield from _ray_pods("worker", workers.worker, needed.worker, cluster)
        yield from _tool_database(
            workers, sorted({agent.database_dir for agent in map(_agent_of, runs) if agent is not None})
        )
    yield from _pods("submitter", cluster.submitter, cluster.submitter.requests, cluster.submitter.limits, cluster)


def _agent_of(run: AnySpec) -> Agent | None:
    return None if isinstance(run, OpdSpec | SftSpec | ConvertSpec) else run.agent


def _life(cluster: Cluster) -> Problems:
    deadlines, queue = cluster.deadlines, cluster.queue
    if deadlines.active_seconds is not None and deadlines.pre_running_seconds is not None:
        least = deadlines.pre_running_seconds + cluster.stop.save_seconds
        if deadlines.active_seconds <= least:
            rule = f"it counts from the start, so it must exceed deadlines.preRunningSeconds + stop.saveSeconds = {least}, or no time is left to train"
            fix = f"use more than {least}"
            yield Problem(path="cluster.deadlines.activeSeconds", value=deadlines.active_seconds, rule=rule, fix=fix)
    if queue is not None and queue.manager == "kueue" and cluster.lifecycle != "suspendable":
        rule = "Kueue suspends runs, which KubeRay refuses for a RayJob with deletion rules"
        fix = "set cluster.lifecycle: suspendable"
        yield Problem(path="cluster.lifecycle", value=cluster.lifecycle, rule=rule, fix=fix)
    if queue is not None and queue.manager == "volcano" and cluster.submission_mode != "K8sJobMode":
        rule = "KubeRay writes Volcano's gang metadata in K8sJobMode only"
        fix = "set cluster.submissionMode: K8sJobMode"
        yield Problem(path="cluster.submissionMode", value=cluster.submission_mode, rule=rule, fix=fix)
    if not cluster.auth.token and not cluster.network_policy.enabled:
        rule = "Ray runs any code that reaches it: without token and network policy, every pod of the cluster could"
        fix = "leave cluster.auth.token or cluster.networkPolicy.enabled true"
        yield Problem(path="cluster.auth.token", value=False, rule=rule, fix=fix)


def _volumes(cluster: Cluster, spec: FileSpec, *, num_workers: int) -> Problems:
    volume, url = cluster.checkpoints, spec.store.url
    if volume.ephemeral and ("://" not in url or url.startswith("file://")):
        fix = "set store.url to s3://..., or cluster.checkpoints.ephemeral: false"
        yield Problem(path="store.url", value=url, rule="without a claim only an object store keeps results", fix=fix)
    binds = not volume.ephemeral and volume.claim is None and volume.access_mode == "ReadWriteOnce"
    if binds and num_workers > 1:
        rule = (
            f"all Ray pods mount the volume, ReadWriteOnce binds them to one node, and trainer.nnodes is {num_workers}"
        )
        fix = "use ReadWriteMany with a StorageClass that has it, or cluster.checkpoints.ephemeral: true"
        yield Problem(path="cluster.checkpoints.accessMode", value=volume.access_mode, rule=rule, fix=fix)


def _tool_database(cluster: RunCluster, folders: list[str]) -> Problems:
    given = cluster.tool_database.claim or cluster.tool_database.url
    if given and not folders:
        rule, fix = "no tool uses it: the spec has no `agent`", "remove it, or add agent.database_dir"
        yield Problem(path="cluster.toolDatabase", value=given, rule=rule, fix=fix)
    for folder in folders if given else ():
        if not folder.startswith("/"):
            rule = "the tool database is mounted there, so it is an absolute path"
            yield Problem(path="agent.database_dir", value=folder, rule=rule, fix="use /databases/NAME")


def _workers(cluster: RunCluster, needed: NodeNeeds) -> Problems:
    """Check that GPUs are counted once and that Ray's CPUs are enough."""
    group, resource = cluster.worker, cluster.gpu.resource
    for field, given in (("requests", group.requests), ("limits", group.limits)):
        if resource in given:
            rule = "the number of GPUs is given once, in trainer.gpus_per_node"
            yield Problem(path=f"cluster.worker.{field}", value=resource, rule=rule, fix="remove it here")
    # Ray schedules by the pod's CPUs: its limit, else its request, in whole ones (KubeRay rounds up).
    requests, limits = resources(group, needed)
    field = "limits" if "cpu" in limits else "requests"
    cpus = limits.get("cpu", requests["cpu"])
    if needed.on_gpu and math.ceil(number(cpus)) < needed.cpus:
        rule = (
            f"Ray places a run by CPUs, and a node of this one needs {needed.cpus} ({needed.cpus_by_part}): with fewer it "
            "would hold its GPUs and wait for ever"
        )
        fix = f"use at least {needed.cpus}, or remove the key"
        yield Problem(path=f"cluster.worker.{field}.cpu", value=cpus, rule=rule, fix=fix)


def _ray_pods(role: str, group: RayPods, needed: NodeNeeds, cluster: Cluster) -> Problems:
    requests, limits = resources(group, needed)
    yield from _pods(role, group, requests, limits, cluster)
    memory = number(limits["memory"])
    if memory < group.shm_gib * GIB:
        rule = f"/dev/shm counts against the memory limit, which is {limits['memory']}"
        fix = f"lower it, or raise cluster.{role}.limits.memory"
        yield Problem(path=f"cluster.{role}.shmGib", value=group.shm_gib, rule=rule, fix=fix)
    least = math.ceil(needed.least_gib + group.object_store_gib)
    if memory < least * GIB:
        rule = f"the processes of one pod and Ray's object store take {least} GiB before a model is loaded"
        fix = f"use at least {least}Gi, or remove the key"
        yield Problem(path=f"cluster.{role}.limits.memory", value=limits["memory"], rule=rule, fix=fix)


def _pods(role: str, group: Pods, requests: Resources, limits: Resources, cluster: Cluster) -> Problems:
    for label in HEAD_LABELS:
        if label in group.labels or label in cluster.labels:
            rule = "KubeRay's head service finds its pod by this label"
            yield Problem(path=f"cluster.{role}.labels", value=label, rule=rule, fix="use another label")
    for name, request in sorted(requests.items()):
        if name in limits and number(request) > number(limits[name]):
            rule = f"a request is at most its limit, which is {limits[name]}"
            fix = f"lower it, or raise cluster.{role}.limits.{name}"
            yield Problem(path=f"cluster.{role}.requests.{name}", value=request, rule=rule, fix=fix)
    accepts = cluster.pod_security.accept_unrestricted
    yield from check_pod_spec(role, group.pod_spec, accept_unrestricted=accepts)
