"""Defines `cluster`, the part of an experiment file about Kubernetes; only charts and tool read it.

The trainer never reads it. `opd.config.cluster.rules` has the rules between its keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import to_jsonable_python

from opd.config.base import Kind
from opd.config.cluster.base import PATTERN_WORDS, ClusterSection, KubeObject, KubeObjects, LabelValue
from opd.config.cluster.lifecycle import (
    Auth,
    CleanUp,
    Deadlines,
    NetworkPolicy,
    PodMonitor,
    Progress,
    Queue,
    Retries,
    Stop,
)
from opd.config.cluster.pods import (
    Disruption,
    EnvVar,
    Gpu,
    Image,
    PodSecurity,
    RayPods,
    Rdma,
    ServiceAccount,
    SubmitterPods,
    ray_pods,
    submitter_pods,
)
from opd.config.cluster.storage import Cache, Checkpoints, Mount, Secrets, ToolDatabase
from opd.config.errors import Problem, SpecError, nearest
from opd.config.field_errors import by_path, field_problem
from opd.config.refusals import redact
from opd.config.schema import inlined_schema
from opd.config.tree import field_at, merge

__all__ = ["Cluster", "RunCluster", "cluster_defaults", "cluster_schema", "parse_cluster"]


class Cluster(ClusterSection):
    """How any run meets the cluster."""

    image: Image = Field(default_factory=Image, description="The image of every pod.")
    submission_mode: Literal["K8sJobMode", "HTTPMode"] = Field(
        default="K8sJobMode",
        description="K8sJobMode: a submitter pod, whose log outlives the Ray cluster; HTTPMode: the operator submits and "
        "a sidecar of the head prints the log.",
    )
    lifecycle: Literal["rules", "suspendable"] = Field(
        default="rules",
        description="rules: staged clean-up after the end; suspendable: `suspend` and Kueue work, one time limit.",
    )
    clean_up: CleanUp = Field(default_factory=CleanUp, description="What is deleted when.")
    retries: Retries = Field(default_factory=Retries, description="How often something is tried again.")
    deadlines: Deadlines = Field(default_factory=Deadlines, description="Time limits of the whole run.")
    stop: Stop = Field(default_factory=Stop, description="Saving before a pod goes.")
    queue: Queue | None = Field(default=None, description="Queue the run waits in; unset: none.")
    head: RayPods = Field(
        default_factory=lambda: ray_pods(object_store_gib=1, shm_gib=2),
        description="The head: the driver (a conversion runs in it) and Ray's own processes, no training. Best on CPU "
        "nodes that are not spot.",
    )
    submitter: SubmitterPods = Field(default_factory=submitter_pods, description="The submitter of K8sJobMode.")
    checkpoints: Checkpoints = Field(default_factory=Checkpoints, description="The run's volume.")
    cache: Cache = Field(default_factory=Cache, description="Fetched models and data.")
    mounts: tuple[Mount, ...] = Field(default=(), description="Existing claims on every Ray pod: models, data.")
    secrets: Secrets = Field(default_factory=Secrets, description="Credentials, by reference.")
    auth: Auth = Field(default_factory=Auth, description="Access to Ray.")
    network_policy: NetworkPolicy = Field(default_factory=NetworkPolicy, description="Allowed traffic.")
    pod_security: PodSecurity = Field(default_factory=PodSecurity, description="User and groups.")
    service_account: ServiceAccount = Field(default_factory=ServiceAccount, description="The pods' ServiceAccount.")
    disruption: Disruption = Field(default_factory=Disruption, description="Drains and autoscalers.")
    progress: Progress = Field(default_factory=Progress, description="How the run stands, in its namespace.")
    pod_monitor: PodMonitor = Field(default_factory=PodMonitor, description="Metrics of Ray for Prometheus.")
    extra_env: tuple[EnvVar, ...] = Field(default=(), description="More variables of every Ray pod; they win.")
    env_from: KubeObjects = Field(
        default=(),
        description="`envFrom` of every Ray container: secretRef, configMapRef.",
        examples=[[{"secretRef": {"name": "variables"}}]],
    )
    extra_volumes: KubeObjects = Field(
        default=(), description="More volumes of every Ray pod.", examples=[[{"name": "scratch", "emptyDir": {}}]]
    )
    extra_volume_mounts: KubeObjects = Field(
        default=(),
        description="More mounts of every Ray container.",
        examples=[[{"name": "scratch", "mountPath": "/scratch"}]],
    )
    labels: dict[str, LabelValue] = Field(default_factory=dict, description="Extra labels of every object.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Extra annotations of the RayJob.")


class RunCluster(Cluster):
    """The same for a kind that trains or samples: with workers, `trainer.nnodes` of them."""

    worker: RayPods = Field(
        default_factory=lambda: ray_pods(object_store_gib=8, shm_gib=16),
        description="The workers: training and sampling.",
    )
    gpu: Gpu = Field(default_factory=Gpu, description="GPUs of a worker; `trainer.gpus_per_node` of them.")
    rdma: Rdma = Field(default_factory=Rdma, description="RDMA devices of a worker.")
    tool_database: ToolDatabase = Field(default_factory=ToolDatabase, description="The tool database.")


_NO_WORKERS = "Not used: a conversion has no workers. Accepted, so that one site file fits every kind."


class ConvertCluster(Cluster):
    """The same for a conversion, which runs in the head."""

    worker: KubeObject | None = Field(default=None, description=_NO_WORKERS)
    gpu: KubeObject | None = Field(default=None, description=_NO_WORKERS)
    rdma: KubeObject | None = Field(default=None, description=_NO_WORKERS)


def cluster_class(kind: Kind) -> type[Cluster]:
    """The section's class for a kind."""
    return ConvertCluster if kind == "convert" else RunCluster


def cluster_schema(kind: Kind) -> dict[str, Any]:
    """JSON Schema of the section, without `$ref`; unknown keys are refused, null is no value."""
    return inlined_schema(cluster_class(kind))


def cluster_defaults(kind: Kind) -> dict[str, Any]:
    """Every default of the section, optional keys without one left out."""
    tree: dict[str, Any] = to_jsonable_python(cluster_class(kind)(), by_alias=True, exclude_none=True)
    return tree


def parse_cluster(tree: Mapping[str, Any], kind: Kind) -> Cluster:
    """The section of a file, laid over the defaults as Helm does it (maps merge, lists do not), validated field by field.

    Raises:
        SpecError: unknown keys, wrong types or values; `opd.config.cluster.rules.load_cluster` has the rules between keys.
    """
    cls = cluster_class(kind)
    whole = merge(cluster_defaults(kind), tree)
    try:
        return cls.model_validate_json(json.dumps(whole))
    except ValidationError as error:
        problems = [
            _unknown(path, items[0]["input"], kind)
            if items[0]["type"] == "extra_forbidden"
            else field_problem(f"cluster.{path}", items, field_at(cls, path), PATTERN_WORDS)
            for path, items in by_path(error, whole)
        ]
        raise SpecError(problems) from None


def _unknown(path: str, value: object, kind: Kind) -> Problem:
    """A problem for a key that the section does not have, with the nearest key that it has."""
    *above, last = path.split(".")
    schema = cluster_schema(kind)
    for part in above:
        schema = schema.get("items", {}) if part.isdigit() else schema.get("properties", {}).get(part, {})
    names = list(schema.get("properties", ()))
    near = nearest(last, names)
    fix = f"did you mean {'.'.join(('cluster', *above, near))}?" if near else f"keys here: {', '.join(names)}"
    return Problem(path=f"cluster.{path}", value=redact({last: value})[last], rule="there is no such key", fix=fix)
