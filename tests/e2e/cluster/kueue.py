"""Kueue's controller manager with the CRDs, roles, webhooks and certificates of its own module.

It runs outside the cluster, so this module does what kubelet and kube-proxy do for its pod. It writes the Secret with its
certificates to the folder that Kueue reads, and its Service leads to a port of this machine.
"""

import base64
import json
from pathlib import Path

import yaml
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.kube import Tree
from tests.e2e.cluster.kuberay import CRDS_TIMEOUT_S, are_crds_served
from tests.e2e.cluster.probes import answers
from tests.ports import free_ports

import gotools

NAMESPACE = "kueue-system"
_ACCOUNT = "kueue-controller-manager"
_SERVICE, _SECRET = "kueue-webhook-service", "kueue-webhook-server-cert"
# The kinds that the tests queue. Webhooks for kinds of other groups are left out: no such kind is served here. Webhooks for
# pods and Deployments would be asked about every pod of every test.
_FRAMEWORKS = ("batch/job", "ray.io/rayjob", "ray.io/raycluster")
_WEBHOOK_GROUPS = {"kueue.x-k8s.io", *(name.split("/")[0] for name in _FRAMEWORKS)}
_LEFT_OUT = {"APIService", "ConfigMap", "Deployment"}  # the manager itself, and its API for looking into queues


class Kueue:
    """The manager of one cluster."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._port, self._probe = free_ports(2)
        self._folder = plane.folder / "kueue"

    def start(self) -> None:
        """Create what the module's own kustomization gives and start the manager as its service account.

        Returns when its webhooks answer: without them the API server refuses every RayJob.
        """
        plane = self._plane
        shipped = plane.admin.run("kustomize", str(gotools.module("kueue") / "config" / "default"))
        trees = [tree for tree in yaml.load_all(shipped, Loader=yaml.CSafeLoader) if tree["kind"] not in _LEFT_OUT]
        items = {"apiVersion": "v1", "kind": "List", "items": [self._led_here(tree) for tree in trees]}
        plane.admin.run("create", "-f", "-", stdin=json.dumps(items), timeout_s=CRDS_TIMEOUT_S)
        plane.admin.until("Kueue's CRDs are established", lambda: are_crds_served(plane), timeout_s=CRDS_TIMEOUT_S)
        self._start_manager()
        plane.processes.wait_for("kueue", self._is_ready, timeout_s=CRDS_TIMEOUT_S)

    def _start_manager(self) -> None:
        self._folder.mkdir()
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._probe}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(self._folder)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": _SERVICE,
                "webhookSecretName": _SECRET,
            },
            "integrations": {"frameworks": list(_FRAMEWORKS)},
            "featureGates": {"VisibilityOnDemand": False},
        }
        path = self._folder / "configuration.json"
        path.write_text(json.dumps(configuration))
        self._plane.processes.start(
            "kueue",
            [gotools.find("kueue"), f"--config={path}"],
            KUBECONFIG=str(self._plane.account_kubeconfig(_ACCOUNT, namespace=NAMESPACE)),
        )

    def _is_ready(self) -> bool:
        return self._has_certificates() and answers(f"http://127.0.0.1:{self._probe}/readyz")

    def _has_certificates(self) -> bool:
        """Writes them as soon as the manager has made them; it looks for the certificate, which so comes last."""
        certificate = self._folder / "tls.crt"
        if certificate.is_file():
            return True
        found = self._plane.admin.get("secret", _SECRET, namespace=NAMESPACE).get("data") or {}
        for path in (self._folder / "tls.key", certificate) if found else ():
            _write_whole(path, base64.b64decode(found[path.name]))
        return bool(found)

    def _led_here(self, tree: Tree) -> Tree:
        """The API server reaches a Service of this type at the name that it gives, and at the port that the webhook gives."""
        if tree["kind"] == "Service":
            tree["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        if "webhooks" in tree:
            tree["webhooks"] = [hook for hook in tree["webhooks"] if _groups(hook) <= _WEBHOOK_GROUPS]
        conversion = tree.get("spec", {}).get("conversion", {}) if tree["kind"] == "CustomResourceDefinition" else {}
        for holder in (*tree.get("webhooks", ()), conversion.get("webhook", {})):
            if holder:
                holder["clientConfig"]["service"]["port"] = self._port
        return tree


def _groups(webhook: Tree) -> set[str]:
    return {group for rule in webhook["rules"] for group in rule["apiGroups"]}


def _write_whole(path: Path, data: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.rename(path)
