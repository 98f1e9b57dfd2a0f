"""The KubeRay operator and its CRDs, both from the operator's own module, under the ClusterRole that it ships."""

import os

from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.probes import answers
from tests.ports import free_ports

import gotools

NAMESPACE = "kuberay-system"
_ACCOUNT = "kuberay-operator"
CRDS_TIMEOUT_S = 600  # over a minute on a machine that has much else to do


def install_crds(plane: ControlPlane) -> None:
    """KubeRay's CRDs; returns once they are served.

    Before the controller manager starts, so that its quota controller counts these kinds from the beginning.
    """
    # Created, not applied: the server takes seconds to merge schemas of this size.
    plane.admin.run(
        "create", f"--filename={gotools.module('ray-operator') / 'config/crd/bases'}", timeout_s=CRDS_TIMEOUT_S
    )
    plane.admin.until("all CRDs are established", lambda: are_crds_served(plane))


def start_operator(plane: ControlPlane) -> None:
    """Start the operator as its service account; needs running controllers. Ready when its health probe says so.

    It runs outside the cluster, so it reaches Ray's dashboard through the API server.
    """
    _grant_role(plane)
    [probe] = free_ports(1)
    plane.processes.start(
        "ray-operator",
        [
            gotools.find("ray-operator"),
            "--enable-leader-election=false",
            "--use-kubernetes-proxy",
            "--metrics-addr=0",
            f"--health-probe-bind-address=127.0.0.1:{probe}",
        ],
        KUBECONFIG=str(plane.account_kubeconfig(_ACCOUNT, namespace=NAMESPACE)),
    )
    plane.processes.wait_for("ray-operator", lambda: answers(f"http://127.0.0.1:{probe}/readyz"))


def are_crds_served(plane: ControlPlane) -> bool:
    """Return True if every CRD is established; `kubectl wait` fails on a CRD without conditions."""
    for crd in plane.admin.items("crd"):
        conditions = {one["type"]: one["status"] for one in crd.get("status", {}).get("conditions") or ()}
        if conditions.get("Established") != "True":
            return False
    return True


def _grant_role(plane: ControlPlane) -> None:
    """Namespace, service account, ClusterRole and bindings as the module's own kustomization gives them."""
    folder = plane.folder / "kuberay"
    folder.mkdir()
    shipped = os.path.relpath(gotools.module("ray-operator") / "config" / "rbac", folder.resolve())
    (folder / "namespace.yaml").write_text(f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n")
    (folder / "kustomization.yaml").write_text(f"namespace: {NAMESPACE}\nresources: [namespace.yaml, {shipped}]\n")
    plane.admin.apply("-k", str(folder))
