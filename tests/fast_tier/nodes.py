"""The fast tier's nodes (run by kwok) and volumes: the least that tells every selector and toleration of the specs apart."""

from typing import Any

from tests.e2e.cluster import tenancy

H200, A100, L40S = "NVIDIA-H200", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S"
_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
STORAGE_CLASS = "shared"


def node(
    name: str, *, gpu: str = "", rdma: int = 0, is_tainted: bool = False, is_cpu_pool: bool = False
) -> dict[str, Any]:
    """A node of 192 cores and 2 TiB; with a GPU type, of eight such GPUs, labelled as NVIDIA's operator does."""
    resources = {"cpu": "192", "memory": "2Ti", "pods": "110", "ephemeral-storage": "8Ti"}
    resources |= {"nvidia.com/gpu": "8"} if gpu else {}
    resources |= {"rdma/ib": str(rdma)} if rdma else {}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    labels |= {"nvidia.com/gpu.product": gpu} if gpu else {}
    labels |= {"node-role/cpu": "true"} if is_cpu_pool else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [_TAINT]} if is_tainted else {},
        "status": {"allocatable": resources, "capacity": resources},
    }


NODES = [
    node("cpu-plain"),
    node("cpu-pool", is_cpu_pool=True),
    node("gpu-open", gpu=L40S),
    node("gpu-a100", gpu=A100, is_tainted=True),
    node("gpu-h200-0", gpu=H200, rdma=8, is_tainted=True),
    node("gpu-h200-1", gpu=H200, rdma=8, is_tainted=True),
]


def volume(name: str, of_class: str = STORAGE_CLASS) -> dict[str, Any]:
    """Return a volume that any claim of manifests and charts fits."""
    return tenancy.volume(name, of_class, hostPath={"path": f"/volumes/{name}"})
