"""`python -m tests.e2e.cluster.inside FOLDER`: process 1 of the cluster's namespaces; starts the parts and ends with them.

When this process ends the kernel ends everything in its PID namespace, containers included, and with the last process go the
mounts and the network. It begins only on the word of its starter, who has written down its process id by then.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tests.e2e.cluster import kuberay, packages
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.isolation import NODE_IP, isolate_mounts, isolate_network, legacy_iptables
from tests.e2e.cluster.node import Node
from tests.e2e.cluster.processes import PartError, Processes, minimal_environment
from tests.e2e.cluster.services import start_dns, start_s3
from tests.e2e.cluster.tenancy import NAMESPACE, install_manifests

GO = "go\n"
READY = "ready"
ADMIN_KUBECONFIG, DEBIAN, PIDS = "admin.kubeconfig", "debian", "pids.json"
USER_KUBECONFIG = f"opd-user-{NAMESPACE}.kubeconfig"
_RESTART_S = 2.0  # what systemd's RestartSec is for kubelet, or a Deployment takes for a killed operator, roughly


def main(folder: Path) -> int:
    """Wait for the word, then split: process 1 reaps orphans, its child runs the cluster."""
    if sys.stdin.readline() != GO:
        return 1
    child = os.fork()
    if child == 0:
        os._exit(_run(folder))
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _run(folder: Path) -> int:
    """Bring the cluster up and keep it until process 1 is killed.

    A part that ends before all are up ends all of them. A part that ends later is started again, as a node's init system
    or a Deployment would do.
    """
    try:
        with _part("namespaces"):
            isolate_mounts(folder)
            isolate_network()
        debian = (folder / DEBIAN).resolve()  # apt's own files are out of sight by now
        tools = [legacy_iptables(folder / "iptables"), debian / "usr/bin", debian / "usr/sbin"]
        path = ":".join([*map(str, tools), packages.search_path()])
        processes = Processes(folder / "logs", environment=minimal_environment(folder, path=path))
        bring_up(folder, processes)
        processes.write_pids(folder / PIDS)
        print(READY, flush=True)
        _keep_up(processes, folder / PIDS)
    except (PartError, RuntimeError, TimeoutError, OSError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1


def _keep_up(processes: Processes, pids: Path) -> NoReturn:
    while True:
        time.sleep(_RESTART_S)
        if processes.start_again():
            processes.write_pids(pids)


@contextmanager
def _part(name: str) -> Iterator[None]:
    """Print that a part is up, with the seconds that it took, unless the block raises."""
    begin = time.monotonic()
    yield
    print(f"{name:<42} {time.monotonic() - begin:6.1f} s", flush=True)


def bring_up(folder: Path, processes: Processes) -> None:
    """Start every part in order; each waits until the part before answers."""
    plane = ControlPlane(folder, processes, address=NODE_IP)
    with _part("etcd, kube-apiserver"):
        plane.start_api()
    with _part("KubeRay's CRDs"):
        kuberay.install_crds(plane)
    with _part("kube-controller-manager, kube-scheduler"):
        plane.start_controllers()
        plane.wait_for_controllers()
    node = Node(plane, (folder / DEBIAN).resolve())
    with _part("containerd"):
        node.start_containerd()
    with _part("images"):
        for archive in sorted((folder / "images").glob("*.tar")):
            node.import_image(archive)
    with _part("kubelet"):
        node.start_kubelet()
        node.wait_for_kubelet()
    with _part("kube-proxy"):
        node.start_proxy()
    with _part("CoreDNS"):
        start_dns(plane)
    with _part("S3"):
        store = start_s3(plane)
    with _part("KubeRay operator"):
        kuberay.start_operator(plane)
    with _part("manifests/cluster"):
        install_manifests(plane, store)
    processes.check()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
