"""Makes the Job that fills a claim, as restricted as a run's pods, and the network policy that lets it out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from opd.config.cluster.lifecycle import DNS_NAMESPACES, OWN_LINKS
from opdctl.kube.client import Tree

MOUNT = "/claim"
STAGE_LABEL = "opd/stage"
# What is left to look at after the end.
TTL_S = 86_400
RETRIES = 3


@dataclass(frozen=True, kw_only=True)
class Staging:
    """What goes where.

    Attributes:
        source: a store URL or a hub id.
        folder: in the claim, relative.
        store_secret: Secret whose keys become variables; empty for none.
        hub_secret: (Secret, key) of the hub's token; None for none.
        user: `runAsUser`, `runAsGroup` and `fsGroup` of the pod; those that are missing are the cluster's to give.
        ports: TCP ports that the pod may reach.
        variables: environment of the pod, such as the store's endpoint.
    """

    source: str
    claim: str
    folder: str
    image: str
    is_local_image: bool = False
    revision: str = ""
    is_dataset: bool = False
    store_secret: str = ""
    hub_secret: tuple[str, str] | None = None
    pull_secrets: tuple[str, ...] = ()
    user: Mapping[str, int] = field(default_factory=dict)
    ports: tuple[int, ...] = (443,)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def job_name(self) -> str:
        """The same for the same work, so that it is not done twice at once."""
        work = json.dumps([self.source, self.claim, self.folder, self.revision, self.is_dataset])
        return f"stage-{hashlib.sha256(work.encode()).hexdigest()[:10]}"


def job(staging: Staging) -> Tree:
    """The Job."""
    labels = {STAGE_LABEL: staging.job_name, "app.kubernetes.io/part-of": "opd"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": staging.job_name,
            "labels": labels,
            "annotations": {"opd/source": staging.source, "opd/target": f"{staging.claim}:{staging.folder}"},
        },
        "spec": {
            "backoffLimit": RETRIES,
            "ttlSecondsAfterFinished": TTL_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod(staging)},
        },
    }


def _pod(staging: Staging) -> Tree:
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            **staging.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"imagePullSecrets": [{"name": name} for name in staging.pull_secrets]} if staging.pull_secrets else {}),
        "containers": [_container(staging)],
        "volumes": [
            {"name": "claim", "persistentVolumeClaim": {"claimName": staging.claim}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "10Gi"}},
        ],
    }


def _container(staging: Staging) -> Tree:
    words = ["python", "-m", "opd.pods.stage", staging.source, "--to", f"{MOUNT}/{staging.folder}".rstrip("/")]
    words += ["--revision", staging.revision] if staging.revision else []
    words += ["--dataset"] if staging.is_dataset else []
    # NVIDIA's runtime would show every GPU to an image that asks for all of them, as the trainer's does.
    own = {"HOME": "/tmp", "HF_HOME": "/tmp/huggingface", "NVIDIA_VISIBLE_DEVICES": "void"}
    env: list[Tree] = [{"name": name, "value": value} for name, value in {**staging.variables, **own}.items()]
    if staging.hub_secret is not None:
        secret, key = staging.hub_secret
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return {
        "name": "stage",
        "image": staging.image,
        "imagePullPolicy": "Never" if staging.is_local_image else "IfNotPresent",
        "command": words,
        "env": env,
        **({"envFrom": [{"secretRef": {"name": staging.store_secret}}]} if staging.store_secret else {}),
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "claim", "mountPath": MOUNT}, {"name": "scratch", "mountPath": "/tmp"}],
    }


def policy(staging: Staging, *, job_uid: str) -> Tree:
    """The way out for the Job's pods (the namespace denies all by default); it goes with the Job."""
    dns = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]
    name = "kubernetes.io/metadata.name"
    resolvers = {
        "namespaceSelector": {"matchExpressions": [{"key": name, "operator": "In", "values": [*DNS_NAMESPACES]}]}
    }
    node_cache = {"ipBlock": {"cidr": "169.254.20.10/32"}}
    out = [{"protocol": "TCP", "port": port} for port in staging.ports]
    # Everywhere but where clouds hand out credentials. Some plug-ins do not match pods by address.
    outside = [{"ipBlock": {"cidr": cidr, "except": [own]}} for cidr, own in OWN_LINKS.items()]
    anywhere: list[Tree] = [{"namespaceSelector": {}}, *outside]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": staging.job_name, "uid": job_uid}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        # A name of its own: the one before may still be on its way out with its Job.
        "metadata": {"name": f"{staging.job_name}-{job_uid[:8]}", "ownerReferences": [owner]},
        "spec": {
            "podSelector": {"matchLabels": {STAGE_LABEL: staging.job_name}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [{"to": [resolvers, node_cache], "ports": dns}, {"to": anywhere, "ports": out}],
        },
    }


def claim(name: str, *, size: str) -> Tree:
    """A claim that many nodes read, of the cluster's default StorageClass."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "opd"}},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}},
    }


def job_end(tree: Tree) -> bool | None:
    """Whether a Job ended well; None while it goes on."""
    conditions = {item["type"]: item["status"] for item in (tree.get("status") or {}).get("conditions") or []}
    if conditions.get("Complete") == "True":
        return True
    return False if conditions.get("Failed") == "True" else None
