"""The rules between `cluster` and the experiment that the tool knows as the charts do: nothing has to be rendered for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opd.config.cluster import Cluster, RunCluster, parse_cluster
from opd.config.cluster.podspec import check_pod_spec
from opd.config.cluster.resources import check_limits, check_ray_pods
from opd.config.errors import Problem, SpecError
from opd.config.kinds import AnySpec, RunSpec
from opd.config.needs import needs


def load_cluster(tree: Mapping[str, Any], spec: AnySpec, *, origin: str = "") -> Cluster:
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


def _problems(cluster: Cluster, spec: AnySpec) -> Iterator[Problem]:
    yield from _identity(cluster)
    needed = needs(spec)
    # The head offers Ray no CPUs, and a run on the CPU gets its slots from the chart.
    yield from check_ray_pods("head", cluster.head, needed.head, ray_counts_cpus=False)
    yield from check_limits("submitter", cluster.submitter.requests, cluster.submitter.limits)
    groups = {"head": cluster.head, "submitter": cluster.submitter}
    if isinstance(cluster, RunCluster):
        groups["worker"] = cluster.worker
    for role, pods in groups.items():
        yield from check_pod_spec(role, pods.pod_spec, accept_unrestricted=cluster.pod_security.accept_unrestricted)
    if isinstance(cluster, RunCluster) and isinstance(spec, RunSpec) and needed.worker is not None:
        on_gpus = spec.device == "cuda"
        yield from check_ray_pods("worker", cluster.worker, needed.worker, ray_counts_cpus=on_gpus)
        yield from _shared_volume(cluster, spec)


def _identity(cluster: Cluster) -> Iterator[Problem]:
    account = cluster.service_account
    if account.name is not None and account.annotations:
        yield Problem(
            path="cluster.serviceAccount.annotations",
            value=account.annotations,
            rule=f"they are for the run's own account; {account.name} is another's",
            fix="annotate that account itself, or remove cluster.serviceAccount.name",
        )
    if cluster.cluster_selector is not None:
        yield Problem(
            path="cluster.clusterSelector",
            value=cluster.cluster_selector,
            rule="a run makes its own Ray cluster: volumes, environment, network policy, retries, saves before the end and "
            "clean-up are all of its pods, and an existing cluster has none of them",
            fix="remove it; to wait for room, set cluster.queue",
        )


def _shared_volume(cluster: RunCluster, spec: RunSpec) -> Iterator[Problem]:
    checkpoints = cluster.checkpoints
    if checkpoints.ephemeral or checkpoints.claim is not None or checkpoints.access_mode != "ReadWriteOnce":
        return
    if spec.trainer.nnodes > 1:
        yield Problem(
            path="cluster.checkpoints.accessMode",
            value=checkpoints.access_mode,
            rule=f"all Ray pods mount the volume, ReadWriteOnce binds them to one node, and trainer.nnodes is {spec.trainer.nnodes}",
            fix="use ReadWriteMany with a StorageClass that has it, or cluster.checkpoints.ephemeral: true",
        )
