"""Services next to the node: CoreDNS for the pods' names and versitygw, an S3 server that checks signatures."""

import secrets
from pathlib import Path

from tests.e2e.cluster.control_plane import CLUSTER_DOMAIN, ControlPlane
from tests.e2e.cluster.isolation import NODE_IP
from tests.e2e.cluster.kube import Tree
from tests.e2e.cluster.probes import is_listening

from gotools import find

S3_PORT = 9000
S3_URL = f"http://{NODE_IP}:{S3_PORT}"
BUCKET = "experiments"
S3_SECRET = "experiment-store"  # the Secret that the example specs name
_DNS_USER = "system:coredns"


def start_dns(plane: ControlPlane) -> None:
    """CoreDNS on the node's address for the cluster's own names; it forwards nothing."""
    plane.admin.create(_dns_role())
    kubeconfig = plane.kubeconfig(_DNS_USER, groups=[])
    corefile = plane.folder / "Corefile"
    corefile.write_text(
        f".:53 {{\n  bind {NODE_IP}\n  errors\n"
        f"  kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{\n    kubeconfig {kubeconfig}\n  }}\n}}\n"
    )
    plane.processes.start("coredns", [find("coredns"), "-conf", corefile])
    plane.processes.wait_for("coredns", lambda: is_listening(NODE_IP, 53))


def start_s3(plane: ControlPlane) -> dict[str, str]:
    """The S3 server with one empty bucket; returns the variables by which a client reaches it."""
    data = plane.folder / "s3"
    (data / BUCKET).mkdir(parents=True)
    access, secret = "opd-e2e", secrets.token_hex(20)
    command: list[str | Path] = [find("versitygw"), "--port", f"{NODE_IP}:{S3_PORT}", "posix", data]
    plane.processes.start("versitygw", command, ROOT_ACCESS_KEY=access, ROOT_SECRET_KEY=secret)
    plane.processes.wait_for("versitygw", lambda: is_listening(NODE_IP, S3_PORT))
    return {
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_ENDPOINT_URL": S3_URL,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _dns_role() -> list[Tree]:
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    group = "rbac.authorization.k8s.io"
    metadata = {"name": _DNS_USER}
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": _DNS_USER},
            "subjects": [{"apiGroup": group, "kind": "User", "name": _DNS_USER}],
        },
    ]
