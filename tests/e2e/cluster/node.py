"""The cluster's one node: containerd, kubelet and kube-proxy, with the settings that a nested machine needs."""

import contextlib
import json
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.cluster.control_plane import CLUSTER_DOMAIN, POD_CIDR, ControlPlane
from tests.e2e.cluster.isolation import NODE_IP
from tests.processes import output

from gotools import find

NODE = "node-0"
SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "localhost/pause:dev"
_POD_SUBNET = "10.244.0.0/24"  # the first that the controller manager hands out of POD_CIDR


class Node:
    """containerd, kubelet and kube-proxy of a control plane's node."""

    def __init__(self, plane: ControlPlane, debian: Path) -> None:
        """`debian` is the folder of the unpacked packages."""
        self.plane, self.processes, self.folder = plane, plane.processes, plane.folder
        self._debian = debian

    def start_containerd(self) -> None:
        """Start containerd; ready once it answers."""
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(_cni()))
        config = self.folder / "containerd.toml"
        config.write_text(
            _CONTAINERD.format(pause=PAUSE_IMAGE, plugins=self._debian / "usr/lib/cni", cni=self.folder / "cni")
        )
        self.processes.start("containerd", [self._debian / "usr/bin/containerd", "--config", config])
        self.processes.wait_for("containerd", self._answers)

    def import_image(self, archive: Path, *, timeout_s: float = 600) -> None:
        """Load an OCI archive for Kubernetes.

        Raises:
            RuntimeError: containerd refused it.
        """
        self._ctr("-n", "k8s.io", "images", "import", archive, timeout_s=timeout_s)

    def start_kubelet(self) -> None:
        """Start kubelet; ready once the API server calls the node ready."""
        serving = self.plane.authority.issue(
            "kubelet", user=f"system:node:{NODE}", hosts=[f"DNS:{NODE}", f"IP:{NODE_IP}"]
        )
        resolv = self.folder / "resolv.conf"
        resolv.touch()
        config = self.folder / "kubelet.yaml"
        authority = str(self.plane.authority.certificate)
        tree = _kubelet(authority, str(serving.certificate), str(serving.key), str(resolv))
        config.write_text(yaml.safe_dump(tree))
        kubeconfig = self.plane.kubeconfig(f"system:node:{NODE}", groups=["system:nodes"])
        self.processes.start(
            "kubelet",
            [
                find("kubelet"),
                f"--config={config}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={NODE}",
                f"--node-ip={NODE_IP}",
            ],
        )

    def wait_for_kubelet(self) -> None:
        """The API server calls the node ready."""

        def is_ready() -> bool:
            path = "{.items[*].status.conditions[?(@.type=='Ready')].status}"
            return self.plane.admin.run("get", "nodes", "-o", f"jsonpath={path}") == "True"

        self.processes.wait_for("kubelet", is_ready)

    def start_proxy(self) -> None:
        """Start kube-proxy in iptables mode; it may not set conntrack's limits here."""
        kubeconfig = self.plane.kubeconfig("system:kube-proxy", groups=[])
        self.processes.start(
            "kube-proxy",
            [
                find("kube-proxy"),
                f"--kubeconfig={kubeconfig}",
                "--proxy-mode=iptables",
                f"--cluster-cidr={POD_CIDR}",
                f"--hostname-override={NODE}",
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0s",
                "--conntrack-tcp-timeout-close-wait=0s",
            ],
        )

    def _answers(self) -> bool:
        with contextlib.suppress(RuntimeError):
            return bool(self._ctr("version"))
        return False

    def _ctr(self, *arguments: object, timeout_s: float = 30) -> str:
        return output(self._debian / "usr/bin/ctr", "--address", SOCKET, *arguments, timeout=timeout_s)


_CONTAINERD = """version = 2
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without CAP_SYS_RESOURCE nobody may lower an OOM score: pods would stay in ContainerCreating.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def _cni() -> dict[str, Any]:
    ranges = [[{"subnet": _POD_SUBNET}]]
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def _kubelet(authority: str, certificate: str, key: str, resolv: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "failSwapOn": False,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": authority},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": certificate,
        "tlsPrivateKeyFile": key,
        "clusterDNS": [NODE_IP],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": resolv,
        # The machine's disk and memory are not the cluster's to guard: only an end that is near evicts.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }
