"""Defines the sections of `cluster` about a run's life: clean-up, retries, deadlines, stopping, queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from opd.config.base import Count, Natural
from opd.config.cluster.base import ClusterSection, LabelValue, PositiveSeconds, Seconds
from opd.config.errors import Problem

Port = Annotated[int, Field(ge=1, le=65535)]


class Ttl(ClusterSection):
    """Seconds after the end until parts of the run are deleted; they must not decrease from one to the next."""

    workers_seconds: Seconds = Field(description="Until the workers (and their GPUs) go.")
    cluster_seconds: Seconds = Field(description="Until the head goes, and with it the dashboard.")
    self_seconds: Seconds = Field(description="Until the RayJob goes, and with it the submitter's log.")

    def check(self) -> Iterator[Problem]:
        """Yield a problem where a later stage ends before an earlier one."""
        if not self.workers_seconds <= self.cluster_seconds <= self.self_seconds:
            rule = "KubeRay demands workersSeconds <= clusterSeconds <= selfSeconds"
            value = self.model_dump(by_alias=True)
            yield Problem(path="", value=value, rule=rule, fix="let each stage last at least as long as the one before")


def _ttl(workers: int, cluster: int, self_: int) -> Ttl:
    return Ttl.model_validate({"workersSeconds": workers, "clusterSeconds": cluster, "selfSeconds": self_})


class CleanUp(ClusterSection):
    """What is deleted when."""

    succeeded: Ttl = Field(
        default_factory=lambda: _ttl(0, 120, 86_400),
        description="After success (lifecycle rules).",
    )
    failed: Ttl = Field(
        default_factory=lambda: _ttl(300, 600, 604_800),
        description="After a failure (lifecycle rules).",
    )
    suspendable_seconds: Seconds = Field(default=300, description="Until the cluster goes (lifecycle suspendable).")


class Retries(ClusterSection):
    """How often something is tried again."""

    backoff_limit: Natural = Field(default=3, description="New Ray clusters after a failed one.")
    submitter_backoff_limit: Natural = Field(default=20, description="New submitter pods after a lost one.")
    starts_per_cluster: Count = Field(
        default=3,
        description="Starts of the trainer within one Ray cluster: another one after a lost worker, and KubeRay's after a lost head.",
    )


class Deadlines(ClusterSection):
    """Time limits of the whole run; both or none. The trainer saves before the first one expires."""

    active_seconds: PositiveSeconds | None = Field(default=None, description="KubeRay ends the run for good after it.")
    pre_running_seconds: PositiveSeconds | None = Field(
        default=None, description="KubeRay gives up if the job is not submitted by then."
    )

    def check(self) -> Iterator[Problem]:
        """Yield a problem where one deadline is missing."""
        if (self.active_seconds is None) != (self.pre_running_seconds is None):
            rule = "the trainer finds the time to save from both deadlines: give both or none"
            value = self.model_dump(by_alias=True, exclude_none=True)
            yield Problem(path="", value=value, rule=rule, fix="set activeSeconds and preRunningSeconds")


class Stop(ClusterSection):
    """How a pod that is taken away lets the trainer save first."""

    save_seconds: PositiveSeconds = Field(default=300, description="The longest wait for a save and its upload.")
    margin_seconds: PositiveSeconds = Field(default=60, description="Grace beyond it, for Ray to end.")


class Queue(ClusterSection):
    """The queue a run waits in."""

    manager: Literal["kueue", "volcano"] = Field(description="Who queues: Kueue, or KubeRay's Volcano integration.")
    name: LabelValue = Field(description="Name of the LocalQueue (Kueue) or queue (Volcano).")
    priority_class: LabelValue | None = Field(default=None, description="Its priority class; unset: none.")


class Auth(ClusterSection):
    """Access to Ray's dashboard and job server, which run any code they are given."""

    token: bool = Field(default=True, description="Demand a token; false opens the cluster to whoever reaches it.")
    secret: LabelValue | None = Field(
        default=None, description="Existing Secret with the key auth_token; unset: KubeRay makes one per Ray cluster."
    )


ALL_ADDRESSES = "0.0.0.0/0"
# All addresses -> those of a node's own link among them: clouds give out the node's credentials there, over plain http.
OWN_LINKS = {ALL_ADDRESSES: "169.254.0.0/16", "::/0": "fd00:ec2::/32"}


class Egress(ClusterSection):
    """One allowed way out: to addresses, or to pods of the cluster."""

    cidr: str = Field(default=ALL_ADDRESSES, pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$", description="Addresses.")
    namespace: LabelValue | None = Field(
        default=None,
        description="Pods of this namespace instead of addresses, which not every network matches to pods.",
    )
    pod_labels: dict[str, LabelValue] = Field(
        default_factory=dict, description="Pods with these labels, of `namespace` or else of the run's own."
    )
    ports: tuple[Port, ...] = Field(min_length=1, description="TCP ports.")


DNS_NAMESPACES = ("kube-system", "openshift-dns")
"""Where Kubernetes' distributions and OpenShift run their DNS."""


class NetworkPolicy(ClusterSection):
    """What may talk to the run's pods, and where they may talk to; all else is denied."""

    enabled: bool = Field(default=True, description="Render the policies.")
    accept_open_network: bool = Field(
        default=False,
        description="Say that something else keeps other pods away, as `enabled: false` needs: Ray's token does not guard TransferQueue's, verl's and torch's ports.",
    )
    dns_namespaces: tuple[LabelValue, ...] = Field(
        default=DNS_NAMESPACES, min_length=1, description="Namespaces of the cluster's DNS, the only one that is asked."
    )
    operator_namespace: LabelValue = Field(default="kuberay-system", description="Namespace of the KubeRay operator.")
    metrics_namespace: LabelValue | None = Field(
        default=None, description="Namespace that may scrape Ray's metrics; unset: none."
    )
    egress: tuple[Egress, ...] = Field(
        default=(Egress(ports=(443,)),),
        description="Store, hub and trackers; the cluster's DNS and the server of `store.endpoint` are always allowed.",
    )

    def check(self) -> Iterator[Problem]:
        """Yield a problem where nothing keeps other pods away."""
        if not self.enabled and not self.accept_open_network:
            rule = (
                "Ray's token does not guard the ports on which verl, TransferQueue and torch exchange pickled objects: without a "
                "policy every pod that reaches them runs code in the run"
            )
            fix = "leave it true; or, where something else keeps other pods away, set cluster.networkPolicy.acceptOpenNetwork: true"
            yield Problem(path="enabled", value=False, rule=rule, fix=fix)


class ApiServer(ClusterSection):
    """Where the head reaches the cluster's API server, as the network sees it behind the Service `kubernetes`."""

    cidr: str = Field(default=ALL_ADDRESSES, pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$", description="Addresses.")
    ports: tuple[Port, ...] = Field(default=(443, 6443), min_length=1, description="TCP ports.")


class Progress(ClusterSection):
    """Progress in the ConfigMap `RUN-progress`, opt-in, for who reaches the API server and not the store."""

    enabled: bool = Field(
        default=False,
        description="Let the driver keep phase, step, time left and score there: the head gets a token that may read and "
        "patch this one ConfigMap.",
    )
    api_server: ApiServer = Field(default_factory=ApiServer, description="The way to the API server.")


class PodMonitor(ClusterSection):
    """A PodMonitor of the Prometheus operator, opt-in."""

    enabled: bool = Field(default=False, description="Render it.")
    interval: str = Field(default="30s", pattern=r"^[0-9]+(ms|s|m|h)$", description="Time between scrapes.")
    labels: dict[str, LabelValue] = Field(default_factory=dict, description="Labels that Prometheus selects by.")
