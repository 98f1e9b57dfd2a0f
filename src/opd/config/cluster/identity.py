"""Who the pods are: their ServiceAccount, and how a cloud's workload identity reaches them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from opd.config.cluster.base import ClusterSection, ObjectName


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
