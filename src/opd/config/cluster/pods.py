"""The sections of `cluster` that shape pods: image, the three groups of pods, GPUs, RDMA, disruption, ServiceAccount."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from opd.config.base import Count, Text
from opd.config.cluster.base import (
    ClusterSection,
    EnvName,
    Gib,
    KubeObject,
    KubeObjects,
    LabelValue,
    ObjectName,
    Quantity,
    Resources,
)
from opd.config.errors import Problem


@dataclass(frozen=True)
class Identity:
    """What a kind of workload identity needs of a pod.

    Attributes:
        annotation: of a ServiceAccount, by which the kind is known.
        pod_labels: labels without which the cloud's webhook passes a pod by.
        egress: addresses and TCP ports that hand out credentials. A kind that asks an HTTPS endpoint has none.
    """

    annotation: str = ""
    pod_labels: dict[str, str] = field(default_factory=dict)
    egress: tuple[tuple[str, tuple[int, ...]], ...] = ()


# EKS's roles by annotation (IRSA) need nothing: STS is HTTPS, and its webhook knows the account.
# GKE's server is seen at its well-known address by Dataplane V2, behind its translation by other networks.
IDENTITIES: dict[str, Identity] = {
    "gke": Identity(
        annotation="iam.gke.io/gcp-service-account",
        egress=(("169.254.169.254/32", (80, 8080)), ("169.254.169.252/32", (987, 988))),
    ),
    "eks-pod-identity": Identity(egress=(("169.254.170.23/32", (80,)), ("fd00:ec2::23/128", (80,)))),
    "azure": Identity(
        annotation="azure.workload.identity/client-id", pod_labels={"azure.workload.identity/use": "true"}
    ),
}


class ServiceAccount(ClusterSection):
    """The ServiceAccount of the pods; its token is mounted nowhere, unless `progress` needs it in the head."""

    name: ObjectName | None = Field(default=None, description="Existing account; unset: the run gets one of its own.")
    annotations: dict[str, str] = Field(
        default_factory=dict, description="Of the run's own account: the cloud role of workload identity."
    )
    identity: Literal["gke", "eks-pod-identity", "azure"] | None = Field(
        default=None,
        description="Workload identity that the account has, where no annotation here says it: opens the address that "
        "hands out credentials (gke, eks-pod-identity), labels the Ray pods (azure). IRSA needs none.",
    )

    def check(self) -> Iterator[Problem]:
        """Yield a problem for annotations of an account that is not the run's own."""
        if self.name is not None and self.annotations:
            rule = f"they are for the run's own account; {self.name} is another's"
            fix = "annotate that account itself, or remove cluster.serviceAccount.name"
            yield Problem(path="annotations", value=self.annotations, rule=rule, fix=fix)


ImageRef = Annotated[Text, Field(pattern=r"^\S+$")]
UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Image(ClusterSection):
    """The image of every pod of the run."""

    ref: ImageRef | None = Field(
        default=None,
        description="Image by digest (`...@sha256:...`), as `images/build.sh trainer --push REGISTRY` prints it.",
        examples=["registry.example.com/team/opd-trainer@sha256:" + 64 * "0"],
    )
    local: bool = Field(default=False, description="Allow a tag: the image was loaded onto the nodes, not pulled.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When to pull; unset: IfNotPresent, with `local` Never."
    )
    pull_secrets: tuple[ObjectName, ...] = Field(
        default=(), description="Existing Secrets for the registry, on every pod."
    )


class Pods(ClusterSection):
    """Resources and placement of a group of pods."""

    requests: Resources = Field(description="Resource requests.")
    limits: Resources = Field(description="Resource limits.")
    node_selector: dict[str, str] = Field(default_factory=dict, description="Node labels the pods need.")
    tolerations: KubeObjects = Field(
        default=(),
        description="Taints the pods tolerate.",
        examples=[[{"key": "nvidia.com/gpu", "operator": "Exists"}]],
    )
    affinity: KubeObject = Field(default_factory=dict, description="Affinity rules.")
    topology_spread_constraints: KubeObjects = Field(
        default=(),
        description="How the pods spread.",
        examples=[
            [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}],
        ],
    )
    priority_class_name: ObjectName | None = Field(default=None, description="PriorityClass; unset: the cluster's own.")
    labels: dict[str, LabelValue] = Field(default_factory=dict, description="Extra pod labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Extra pod annotations.")
    pod_spec: KubeObject = Field(
        default_factory=dict,
        description="Any fields of a pod's spec, merged last over the chart's, and `unset`, a list of fields of the "
        "chart's to drop (`securityContext.runAsUser`, `securityContext.fsGroup`); how: charts/README.md.",
    )


class RayPods(Pods):
    """Pods that run Ray. What is needed: `opd.config.needs`; what follows for a pod: `opd.config.cluster.rules`."""

    requests: Resources = Field(
        default_factory=dict,
        description="Resource requests; cpu and memory unset: their limit, else what the run needs by its sizes.",
    )
    limits: Resources = Field(
        default_factory=dict, description="Resource limits; memory unset: the request; cpu unset: none."
    )
    object_store_gib: Gib = Field(description="Ray's object store, part of /dev/shm.")
    shm_gib: Gib = Field(description="Size of /dev/shm; what is used of it counts against the memory limit.")
    scratch_size: Quantity = Field(default="50Gi", description="Size limit of /tmp: Ray's logs and spilled objects.")

    def check(self) -> Iterator[Problem]:
        """Yield a problem where Ray's object store does not fit."""
        if self.object_store_gib > self.shm_gib:
            rule = f"Ray's object store is in /dev/shm, which has {self.shm_gib:g} GiB"
            fix = "raise shmGib of these pods, or lower objectStoreGib"
            yield Problem(path="objectStoreGib", value=self.object_store_gib, rule=rule, fix=fix)


def ray_pods(*, object_store_gib: float, shm_gib: float) -> RayPods:
    """A group with what it needs."""
    return RayPods.model_validate({"objectStoreGib": object_store_gib, "shmGib": shm_gib})


class SubmitterPods(Pods):
    """The submitter: it submits the job and follows its log."""

    image: ImageRef | None = Field(
        default=None, description="Its image; unset: `image.ref`. The smaller cpu image follows a log as well."
    )


def submitter_pods() -> SubmitterPods:
    """The submitter with what it needs."""
    return SubmitterPods(requests={"cpu": "100m", "memory": "512Mi"}, limits={"memory": "1Gi"})


class Gpu(ClusterSection):
    """The GPUs of a worker pod; how many is `trainer.gpus_per_node`."""

    resource: Text = Field(default="nvidia.com/gpu", description="Extended resource that a GPU is asked for by.")
    type: Text | None = Field(
        default=None,
        description="Value of the node label `typeLabel`; unset: any GPU.",
        examples=["NVIDIA-H100-80GB-HBM3"],
    )
    type_label: Text = Field(default="nvidia.com/gpu.product", description="Node label that names the type of GPU.")


class Rdma(ClusterSection):
    """RDMA network devices for the workers, opt-in."""

    enabled: bool = Field(default=False, description="Ask for RDMA devices, where the run has GPUs.")
    resource: Text = Field(default="rdma/hca_shared_devices_a", description="Extended resource of the device plug-in.")
    count: Count = Field(default=1, description="Devices a worker pod gets.")
    ipc_lock: bool = Field(
        default=False,
        description="Add the IPC_LOCK capability. Pod Security `restricted` and `baseline` refuse it: it needs the "
        "namespace of manifests/cluster/overlays/rdma; nodes with an unlimited memlock do not need it.",
    )

    def check(self) -> Iterator[Problem]:
        """Yield a problem for the capability without the devices."""
        if self.ipc_lock and not self.enabled:
            fix = "set cluster.rdma.enabled: true, or remove ipcLock"
            yield Problem(path="ipcLock", value=True, rule="the capability is for RDMA only", fix=fix)


class PodSecurity(ClusterSection):
    """User and groups of every pod; the rest of Pod Security `restricted` is fixed."""

    run_as_user: UserId = Field(default=1000, description="User id.")
    run_as_group: UserId = Field(default=1000, description="Group id.")
    fs_group: UserId = Field(default=1000, description="Group that owns the volumes.")
    read_only_root_filesystem: bool = Field(
        default=False,
        description="Let Ray's containers write to their volumes alone, as the others do; not tried on GPUs: SECURITY.md.",
    )
    accept_unrestricted: bool = Field(
        default=False,
        description="Let podSpec change what Pod Security `restricted` and the pods' identity rest on; the namespace must "
        "allow it too.",
    )


class Disruption(ClusterSection):
    """What keeps the cluster from moving a run's Ray pods: one that goes ends the attempt."""

    budget: bool = Field(
        default=True,
        description="Render a PodDisruptionBudget: a drain waits for the run's end, or for `opdctl cancel`.",
    )
    autoscalers: bool = Field(
        default=True, description="Annotate the pods so that Cluster Autoscaler and Karpenter leave their nodes alone."
    )


class EnvVar(ClusterSection):
    """An environment variable: a plain value or a reference, never a literal secret."""

    name: EnvName = Field(description="Name.")
    value: str | None = Field(default=None, description="Plain value.")
    value_from: KubeObject | None = Field(default=None, description="Reference, as in a Kubernetes container.")

    def check(self) -> Iterator[Problem]:
        """Yield a problem where the variable has two values, or none."""
        if (self.value is None) == (self.value_from is None):
            rule = "a variable has either a value or a valueFrom"
            yield Problem(path="", value=self.name, rule=rule, fix="keep one of the two")
