"""The administrator's work, done once: volumes for claims, manifests/cluster, the store's Secret, a kubeconfig for `opd-user`."""

from pathlib import Path

from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.kube import Kube, Tree
from tests.e2e.cluster.node import NODE
from tests.e2e.cluster.services import S3_SECRET

NAMESPACE = "opd"
MANIFESTS = Path(__file__).resolve().parents[3] / "manifests" / "cluster"
_STORAGE_CLASS = "node-disk"
_NUM_VOLUMES = 48
_VOLUMES = Path("/var/lib/opd-volumes")  # in the cluster's own /var


def install_manifests(plane: ControlPlane, store: dict[str, str]) -> None:
    """Ready once the quota counts, the claims are bound and the namespace has its service account."""
    plane.admin.create([storage_class(_STORAGE_CLASS), *(_disk(number) for number in range(_NUM_VOLUMES))])
    plane.admin.apply("-k", str(MANIFESTS))
    for part in ("quota", "claims"):
        plane.admin.apply("-f", str(MANIFESTS / f"components/{part}/{part}.yaml"))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": S3_SECRET}, "stringData": store}
    plane.admin.create([secret], namespace=NAMESPACE)
    plane.user(NAMESPACE)  # its kubeconfig
    plane.admin.until("the namespace opd is ready", lambda: is_ready(plane.admin, NAMESPACE))


def is_ready(admin: Kube, namespace: str) -> bool:
    """Return True once the quota counts, the claims are bound and the namespace has its service account."""
    admin.get("serviceaccount", "default", namespace=namespace)
    quota = admin.get("resourcequota", "opd", namespace=namespace)
    is_counted = set(quota.get("status", {}).get("hard", ())) == set(quota["spec"]["hard"])
    claims = admin.items("persistentvolumeclaims", namespace=namespace)
    return is_counted and all(claim["status"].get("phase") == "Bound" for claim in claims)


def storage_class(name: str, *, is_default: bool = True) -> Tree:
    """Return a class whose volumes are made by `volume`."""
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if is_default else {}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "Immediate",
    }


def volume(name: str, of_class: str, **source: Tree) -> Tree:
    """Return a volume that any claim of manifests and charts fits: nothing enforces its size."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "4Ti"},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "storageClassName": of_class,
            **source,
        },
    }


def _disk(number: int) -> Tree:
    """Return a folder of the node; a `local` volume gets the pod's fsGroup, which a hostPath does not."""
    folder = _VOLUMES / f"{number:02}"
    folder.mkdir(parents=True)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    return volume(f"disk-{number:02}", _STORAGE_CLASS, local={"path": str(folder)}, nodeAffinity=affinity)
