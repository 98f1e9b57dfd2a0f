"""The administrator's work, done once: volumes for claims, manifests/cluster, the store's Secret, a kubeconfig for `opd-user`."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.kube import Tree
from tests.e2e.cluster.node import NODE
from tests.e2e.cluster.services import S3_SECRET

NAMESPACE = "opd"
MANIFESTS = Path(__file__).resolve().parents[3] / "manifests" / "cluster"
_STORAGE_CLASS = "node-disk"
_NUM_VOLUMES = 48
_VOLUMES = Path("/var/lib/opd-volumes")  # in the cluster's own /var


def install_manifests(plane: ControlPlane, store: dict[str, str], user_kubeconfig: Path) -> None:
    """Ready once the quota counts, the claims are bound and the namespace has its service account."""
    plane.admin.create([_storage_class(), *(_volume(number) for number in range(_NUM_VOLUMES))])
    plane.admin.apply("-k", str(MANIFESTS))
    for part in ("quota", "claims"):
        plane.admin.apply("-f", str(MANIFESTS / f"components/{part}/{part}.yaml"))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": S3_SECRET}, "stringData": store}
    plane.admin.create([secret], namespace=NAMESPACE)
    shutil.copyfile(plane.user(NAMESPACE).kubeconfig, user_kubeconfig)
    user_kubeconfig.chmod(0o600)
    plane.admin.until("the namespace opd is ready", lambda: _is_ready(plane))


def _is_ready(plane: ControlPlane) -> bool:
    plane.admin.get("serviceaccount", "default", namespace=NAMESPACE)
    quota = plane.admin.get("resourcequota", "opd", namespace=NAMESPACE)
    is_counted = set(quota.get("status", {}).get("hard", ())) == set(quota["spec"]["hard"])
    claims = plane.admin.items("persistentvolumeclaims", namespace=NAMESPACE)
    return is_counted and all(claim["status"].get("phase") == "Bound" for claim in claims)


def _storage_class() -> Tree:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": _STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "Immediate",
    }


def _volume(number: int) -> Tree:
    """A folder of the node; a `local` volume gets the pod's fsGroup, which a hostPath does not.

    Its size is what claims may ask for, not what the disk has: nothing here enforces it.
    """
    folder = _VOLUMES / f"{number:02}"
    folder.mkdir(parents=True)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"disk-{number:02}"},
        "spec": {
            "capacity": {"storage": "4Ti"},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "storageClassName": _STORAGE_CLASS,
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }
