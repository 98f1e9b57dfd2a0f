"""Reaches a run's Ray head: finds its pod, reads Ray's token, and opens connections to its dashboard."""

from __future__ import annotations

import base64
import binascii
import threading

from opdctl.errors import ToolError
from opdctl.forward import Connection
from opdctl.kube.client import KubeApi
from opdctl.kube.run import ClusterRun

DASHBOARD_PORT = 8265
TOKEN_KEY = "auth_token"
CLUSTER_LABEL = "ray.io/cluster"


def head_pod(run: ClusterRun, run_id: str) -> str:
    """Name of the running head.

    Raises:
        ToolError: none runs.
    """
    heads = [pod for pod in run.pods if pod.role == "head"]
    running = [pod for pod in heads if pod.phase == "Running"]
    if not running:
        why = f": {heads[-1].why}" if heads and heads[-1].why else ""
        raise ToolError(
            f"run {run_id} has no running head{why}", fix=f"`opdctl status {run_id}` says what it waits for"
        )
    return running[-1].name


def ray_token(api: KubeApi, ray_cluster: str) -> bytes | None:
    """The token of a Ray cluster, None where it asks for none. Never to be printed.

    Raises:
        ToolError: the Secret is not there or holds none.
    """
    cluster = api.find(api.path("rayclusters", ray_cluster)) or {}
    auth = cluster.get("spec", {}).get("authOptions") or {}
    if auth.get("mode") != "token":
        return None
    if auth.get("secretName"):
        name = auth["secretName"]
        secrets = [api.find(api.path("secrets", name)) or {}]
    else:  # KubeRay's own; it cuts long names, so the label finds it
        name = f"with label {CLUSTER_LABEL}={ray_cluster}"
        secrets = api.list(api.path("secrets"), selector=f"{CLUSTER_LABEL}={ray_cluster}")
    text = next((secret["data"][TOKEN_KEY] for secret in secrets if TOKEN_KEY in (secret.get("data") or {})), None)
    if text is None:
        raise ToolError(f"secret {name} has no {TOKEN_KEY}", fix="is the KubeRay operator running?")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ToolError(f"secret {name}: {TOKEN_KEY} is no base64") from error


class PodPort:
    """Opens connections to one port of a pod through the API server."""

    def __init__(self, api: KubeApi, pod: str, port: int):
        self.api = api
        self.pod = pod
        self.port = port
        # The client library swaps a method of its own while it opens a stream.
        self._lock = threading.Lock()

    def connect(self) -> Connection:
        """A new connection.

        Raises:
            OSError: the pod or the API server does not take it.
        """
        from kubernetes.client import ApiException
        from kubernetes.stream import portforward

        with self._lock:
            try:
                ports = portforward(
                    self.api.core().connect_get_namespaced_pod_portforward,
                    self.pod,
                    self.api.namespace,
                    ports=str(self.port),
                )
            except ApiException as error:
                raise ConnectionError(f"pod {self.pod} takes no connection: {error.reason}") from error
        connection: Connection = ports.socket(self.port)
        return connection
