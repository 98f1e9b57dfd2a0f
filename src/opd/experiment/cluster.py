"""`cluster`, the part of an experiment file about Kubernetes: only charts and tool read it, the trainer never does."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AliasGenerator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import to_jsonable_python

from opd.experiment.base import Section, key, matching
from opd.experiment.errors import Problem, SpecError
from opd.experiment.field_errors import field_problems
from opd.experiment.kinds import FileSpec
from opd.experiment.pipeline import Sizes, all_sizes
from opd.experiment.tree import merge
from opd.experiment.types import Count, Natural, Text

_QUANTITIES = "a quantity of Kubernetes: a number, alone or with m, k, M, G, T, P, Ki, Mi, Gi, Ti or Pi"
_NAMES = "a name in Kubernetes: lower-case letters, digits, `-` and `.`, a letter or digit at both ends"
_LABELS = "a label's value: letters, digits, `-`, `_` and `.`, a letter or digit at both ends"
_IMAGES = "an image: a repository in lower-case letters, then `:TAG` or `@sha256:` and 64 digits"
_IMAGE = r"^[a-z0-9][-a-z0-9._:/]*(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]{64})?$"
QuantityText = Annotated[str, matching(r"^[0-9]+(\.[0-9]+)?(m|k|[MGTP]|[KMGTP]i)?$", _QUANTITIES)]
Quantity = Annotated[int, Field(ge=0)] | QuantityText
Resources = dict[str, Quantity]
ObjectName = Annotated[str, matching(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", _NAMES, max_length=253)]
LabelValue = Annotated[str, matching(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", _LABELS, max_length=63)]
AbsolutePath = Annotated[str, matching(r"^/[^:]*[^:/]$", "an absolute path without `:` and without `/` at its end")]
ImageRef = Annotated[Text, matching(_IMAGE, _IMAGES)]
GpuResource = Annotated[Text, matching(r"^nvidia\.com/[-a-zA-Z0-9._]+$", "a resource of NVIDIA's, nvidia.com/NAME")]
Seconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
PositiveSeconds = Annotated[int, Field(ge=1, le=2**31 - 1)]
Gib = Annotated[float, Field(gt=0, le=2**20)]
Port = Annotated[int, Field(ge=1, le=65535)]
UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]
Cidr = Annotated[str, Field(pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$")]
_UNITS = {unit: Decimal(1000) ** power for power, unit in enumerate(["m", "", "k", *"MGTP"], start=-1)}
_UNITS |= {f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTP", start=1)}
KubeObject = dict[str, Any]  # of the Kubernetes API, which validates it
KubeObjects = tuple[KubeObject, ...]
Labels = dict[str, LabelValue]


def number(quantity: int | str) -> Decimal:
    """Return an experiment's quantity of Kubernetes in its base unit: cores, bytes."""
    digits = str(quantity).rstrip("mkKMGTPi")
    return Decimal(digits) * _UNITS[str(quantity)[len(digits) :]]


class ClusterSection(Section):
    """A group of keys, spelled in camelCase as Kubernetes does."""

    model_config = ConfigDict(alias_generator=AliasGenerator(alias=to_camel))


def _of(cls: type[ClusterSection], **values: float) -> Callable[[], Any]:
    """Return the maker of a section with these values."""
    return lambda: cls.model_validate(values)


class Image(ClusterSection):
    ref: ImageRef | None = key("Image by digest, as `images/build.sh trainer --push REGISTRY` prints it.", None)
    local: bool = key("Allow a tag: the image was loaded onto the nodes, not pulled.", False)
    pull_secrets: tuple[ObjectName, ...] = key("Existing Secrets for the registry, on every pod.", ())


class Ttl(ClusterSection):
    workers_seconds: Seconds = key("Until the workers (and their GPUs) go. Default: 0, failed 300.")
    cluster_seconds: Seconds = key("Until the head goes, and the dashboard. Default: 120, failed 600.")
    self_seconds: Seconds | None = key("Until the RayJob goes; null: never (Argo CD). Default: a day, failed a week.")

    def check(self) -> Iterator[Problem]:
        last = self.cluster_seconds if self.self_seconds is None else self.self_seconds
        if not self.workers_seconds <= self.cluster_seconds <= last:
            rule = "KubeRay demands workersSeconds <= clusterSeconds <= selfSeconds"
            yield self.broken("", rule, "let each stage last at least as long as the one before")


class CleanUp(ClusterSection):
    succeeded: Ttl = key("After success (rules).", _of(Ttl, workersSeconds=0, clusterSeconds=120, selfSeconds=86_400))
    failed: Ttl = key("After a failure (rules).", _of(Ttl, workersSeconds=300, clusterSeconds=600, selfSeconds=604_800))


class Retries(ClusterSection):
    backoff_limit: Natural = key("New Ray clusters after a failed one.", 3)
    submitter_backoff_limit: Natural = key("New submitter pods after a lost one.", 20)
    starts_per_cluster: Count = key("Starts of the trainer within one Ray cluster, after a lost worker or head.", 3)


class Deadlines(ClusterSection):
    active_seconds: PositiveSeconds | None = key("KubeRay ends the run for good after it.", None)
    pre_running_seconds: PositiveSeconds | None = key("KubeRay gives up if the job is not submitted by then.", None)

    def check(self) -> Iterator[Problem]:
        if (self.active_seconds is None) != (self.pre_running_seconds is None):
            rule = "activeSeconds includes the wait for the pods, which preRunningSeconds bounds: give both or none"
            yield self.broken("", rule, "set activeSeconds and preRunningSeconds")


class Stop(ClusterSection):
    save_seconds: PositiveSeconds = key("The longest wait for a save and its upload.", 300)
    margin_seconds: PositiveSeconds = key("Grace beyond it, for Ray to end.", 60)


class Queue(ClusterSection):
    manager: Literal["kueue", "volcano"] = key("Who queues: Kueue, or KubeRay's Volcano integration.")
    name: LabelValue = key("Name of the LocalQueue (Kueue) or queue (Volcano).")
    priority_class: LabelValue | None = key("Its priority class; unset: none.", None)


class Auth(ClusterSection):
    token: bool = key("Demand a token; false opens the cluster to every process that reaches it.", True)
    secret: LabelValue | None = key("Existing Secret with the key auth_token; unset: KubeRay makes one.", None)


class Egress(ClusterSection):
    cidr: Cidr = key("Addresses.", "0.0.0.0/0")
    namespace: LabelValue | None = key("Pods of this namespace instead of addresses.", None)
    pod_labels: Labels = key("Pods with these labels, of `namespace` or else of the run's own.", dict)
    ports: tuple[Port, ...] = key("TCP ports.", min_length=1)


class NetworkPolicy(ClusterSection):
    enabled: bool = key("Render the policies.", True)
    accept_open_network: bool = key("Another policy keeps other pods out, as `enabled: false` needs.", False)
    dns_namespaces: tuple[LabelValue, ...] = key("Namespaces of DNS.", ("kube-system", "openshift-dns"), min_length=1)
    dns_cidrs: tuple[Cidr, ...] = key("Other DNS servers; GKE's Cloud DNS: 169.254.169.254/32.", ("169.254.20.10/32",))
    operator_namespace: LabelValue = key("Namespace of the KubeRay operator.", "kuberay-system")
    metrics_namespace: LabelValue | None = key("Namespace that may scrape Ray's metrics; unset: none.", None)
    egress: tuple[Egress, ...] = key("Hub and trackers; DNS and `store.endpoint` are open.", (Egress(ports=(443,)),))


class ServiceAccount(ClusterSection):
    name: ObjectName | None = key("Existing account; unset: the run gets one of its own.", None)
    annotations: dict[str, str] = key("Annotations of the run's account: the cloud role of workload identity.", dict)


class Pods(ClusterSection):
    requests: Resources = key("Resource requests; cpu and memory unset: their limit, else what the run needs.", dict)
    limits: Resources = key("Resource limits; memory unset: the request; cpu unset: none.", dict)
    node_selector: dict[str, str] = key("Node labels the pods need.", dict)
    tolerations: KubeObjects = key("Taints the pods tolerate.", ())
    affinity: KubeObject = key("Affinity rules.", dict)
    topology_spread_constraints: KubeObjects = key("Spread constraints of the pods.", ())
    priority_class_name: ObjectName | None = key("PriorityClass; unset: the cluster's own.", None)
    labels: Labels = key("Extra pod labels.", dict)
    annotations: dict[str, str] = key("Extra pod annotations.", dict)
    pod_spec: KubeObject = key("Fields of a pod's spec, merged last; null drops one. How: charts/README.md.", dict)

    def check(self) -> Iterator[Problem]:
        for name, request in sorted(self.requests.items()):
            if name in self.limits and number(request) > number(self.limits[name]):
                rule = f"a request is at most its limit, which is {self.limits[name]}"
                yield self.broken(f"requests.{name}", rule, f"lower it, or raise limits.{name} of these pods")


class RayPods(Pods):
    object_store_gib: Gib = key("Ray's object store, part of /dev/shm. Default: head 1, worker 8.")
    shm_gib: Gib = key("Size of /dev/shm, whose use counts against the memory limit. Default: head 2, worker 16.")

    def check(self) -> Iterator[Problem]:
        yield from super().check()
        memory = self.limits.get("memory", self.requests.get("memory"))
        if self.object_store_gib > self.shm_gib:
            rule = f"Ray's object store is in /dev/shm, which has {self.shm_gib:g} GiB"
            yield self.broken("objectStoreGib", rule, "raise shmGib of these pods, or lower objectStoreGib")
        if memory is not None and number(memory) < self.shm_gib * 2**30:
            rule = f"/dev/shm counts against the memory limit, which is {memory}"
            yield self.broken("shmGib", rule, "lower it, or raise limits.memory of these pods")


class SubmitterPods(Pods):
    requests: Resources = key("Resource requests.", lambda: {"cpu": "100m", "memory": "512Mi"})
    limits: Resources = key("Resource limits.", lambda: {"memory": "1Gi"})
    image: ImageRef | None = key("Its image; unset: `image.ref`. The smaller cpu image follows a log as well.", None)


class Gpu(ClusterSection):
    resource: GpuResource = key("Extended resource of a GPU, nvidia.com/...: the kernels are CUDA's.", "nvidia.com/gpu")
    type: Text | None = key("Value of the node label `typeLabel`; unset: any GPU.", None)
    type_label: Text = key("Node label that names the type of GPU.", "nvidia.com/gpu.product")


class Rdma(ClusterSection):
    enabled: bool = key("Ask for RDMA devices, where the run has GPUs.", False)
    resource: Text = key("Extended resource of the device plug-in.", "rdma/hca_shared_devices_a")
    count: Count = key("Devices a worker pod gets.", 1)
    ipc_lock: bool = key("Add the IPC_LOCK capability, which Pod Security `restricted` and `baseline` refuse.", False)


class PodSecurity(ClusterSection):
    run_as_user: UserId | None = key("User id; null: the namespace's (OpenShift).", 1000)
    run_as_group: UserId | None = key("Group id; null likewise.", 1000)
    fs_group: UserId | None = key("Group that owns the volumes; null likewise.", 1000)
    read_only_root_filesystem: bool = key("Let Ray's containers write to their volumes alone.", False)
    accept_unrestricted: bool = key("Let values change what Pod Security `restricted` and identities need.", False)


class Disruption(ClusterSection):
    budget: bool = key("Render a PodDisruptionBudget: a drain waits for the run's end.", True)
    autoscalers: bool = key("Annotate the pods so that Cluster Autoscaler and Karpenter leave their nodes alone.", True)


class Checkpoints(ClusterSection):
    claim: ObjectName | None = key("Existing claim; unset: the chart makes one and keeps it.", None)
    size: Quantity = key("Size of the claim that the chart makes.", "500Gi")
    storage_class: ObjectName | None = key("StorageClass; unset: the cluster's default.", None)
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = key("ReadWriteOnce: one node.", "ReadWriteMany")
    path: AbsolutePath = key("Where it is mounted.", "/opd")
    ephemeral: bool = key("No claim: each pod has its own empty folder, and only the store keeps results.", False)


class Cache(ClusterSection):
    claim: ObjectName | None = key("Existing claim; unset: a folder on the run's volume.", None)
    path: AbsolutePath = key("Where the claim is mounted.", "/cache")


class Mount(ClusterSection):
    claim: ObjectName = key("Name of the claim.")
    path: AbsolutePath = key("Where it is mounted.")
    sub_path: Text | None = key("Folder in the claim.", None)
    read_only: bool = key("Mount it read-only.", True)


class SecretKey(ClusterSection):
    secret: ObjectName = key("Name of the Secret.")
    key: Text = Field(description="Key in it.")


class Secrets(ClusterSection):
    hugging_face: SecretKey | None = key("Token for gated models, as HF_TOKEN.", None)
    wandb: SecretKey | None = key("API key, as WANDB_API_KEY.", None)
    mlflow: SecretKey | None = key("Token of the tracking server, as MLFLOW_TRACKING_TOKEN.", None)
    teacher: SecretKey | None = key("API key of a served teacher, as OPD_TEACHER_API_KEY.", None)
    store: ObjectName | None = key("Secret whose keys become variables (AWS_ACCESS_KEY_ID, ...).", None)


class Cluster(ClusterSection):
    image: Image = key("The image of every pod of the run.", Image)
    lifecycle: Literal["rules", "suspendable"] = key("rules: staged clean-up; suspendable: Kueue may suspend.", "rules")
    clean_up: CleanUp = key("The times of deletion.", CleanUp)
    retries: Retries = key("The numbers of attempts.", Retries)
    deadlines: Deadlines = key("Time limits of the run, both or none; the pods save before they go.", Deadlines)
    stop: Stop = key("The time that an evicted pod has to save.", Stop)
    queue: Queue | None = key("Queue the run waits in; unset: none.", None)
    head: RayPods = key("The driver, a conversion, Ray's own processes.", _of(RayPods, objectStoreGib=1, shmGib=2))
    submitter: SubmitterPods = key("The submitter: it submits the job and follows its log.", SubmitterPods)
    checkpoints: Checkpoints = key("The run's volume, on which the spec's relative paths are.", Checkpoints)
    cache: Cache = key("The folder that keeps models and data from a hub or a store for the next run.", Cache)
    mounts: tuple[Mount, ...] = key("Existing claims on every Ray pod: models, data, a tool database.", ())
    secrets: Secrets = key("Credentials by reference to existing Secrets.", Secrets)
    auth: Auth = key("Access to Ray's dashboard and job server, which run any code they are given.", Auth)
    network_policy: NetworkPolicy = key("The traffic that the policy allows; it denies all else.", NetworkPolicy)
    pod_security: PodSecurity = key("User and groups of every pod.", PodSecurity)
    service_account: ServiceAccount = key("The pods' ServiceAccount.", ServiceAccount)
    disruption: Disruption = key("Guards of the Ray pods against drains and autoscalers.", Disruption)
    extra_env: KubeObjects = key("More variables of every Ray pod; they win.", ())
    env_from: KubeObjects = key("`envFrom` of every Ray container.", ())
    extra_volumes: KubeObjects = key("More volumes of every Ray pod.", ())
    extra_volume_mounts: KubeObjects = key("More mounts of every Ray container.", ())
    labels: Labels = key("Extra labels of every object.", dict)
    annotations: dict[str, str] = key("Extra annotations of the RayJob.", dict)
    check_first: bool = key("A pod without GPUs checks the file before a RayJob exists.", True, alias="check")
    worker: RayPods = key("The workers: training and sampling.", _of(RayPods, objectStoreGib=8, shmGib=16))
    teacher: Pods = key("The servers of `teacher.serve`; their /dev/shm is as large as a worker's.", Pods)
    gpu: Gpu = key("The GPUs of a pod; how many is `trainer.gpus_per_node`, or `teacher.serve.gpus`.", Gpu)
    rdma: Rdma = key("RDMA network devices for the workers, opt-in.", Rdma)

    def check(self) -> Iterator[Problem]:
        deadlines, manager = self.deadlines, self.queue.manager if self.queue else None
        least = (deadlines.pre_running_seconds or 0) + self.stop.save_seconds
        if deadlines.active_seconds is not None and deadlines.active_seconds <= least:
            rule = f"no time is left to train after deadlines.preRunningSeconds + stop.saveSeconds = {least}"
            yield self.broken("deadlines.activeSeconds", rule, f"use more than {least}")
        if manager == "kueue" and self.lifecycle != "suspendable":
            rule = "Kueue suspends runs, which KubeRay refuses for a RayJob with deletion rules"
            yield self.broken("lifecycle", rule, "set cluster.lifecycle: suspendable")
        if not self.auth.token and not self.network_policy.enabled:
            rule = "Ray runs any code that reaches it: without token and network policy, every pod of the cluster could"
            yield self.broken("auth.token", rule, "leave cluster.auth.token or cluster.networkPolicy.enabled true")


def load_cluster(tree: Mapping[str, Any], spec: FileSpec, *, origin: str = "") -> Cluster:
    """Return the `cluster` section of a file, checked against its experiment; the image may be missing."""
    whole = merge(to_jsonable_python(Cluster(), by_alias=True, exclude_none=True), tree)
    try:
        cluster = Cluster.model_validate_json(json.dumps(whole))
    except ValidationError as error:
        found = field_problems(error, whole, Cluster, above="cluster")
        raise SpecError((problem.below("cluster") for problem in found), origin=origin) from None
    sizes = all_sizes(spec)
    found = [*cluster.broken_rules(), *(_workers(cluster, sizes) if sizes else ())]
    if problems := [*(problem.below("cluster") for problem in found), *_places(cluster, spec)]:
        raise SpecError(problems, origin=origin)
    return cluster


def _places(cluster: Cluster, spec: FileSpec) -> Iterator[Problem]:
    """Check that results are kept."""
    url = spec.store.url
    if cluster.checkpoints.ephemeral and ("://" not in url or url.startswith("file://")):
        fix = "set store.url to s3://..., or cluster.checkpoints.ephemeral: false"
        yield spec.broken("store.url", "without a claim only an object store keeps results", fix)


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
