"""The fast tier: a real control plane, the real KubeRay operator and kwok's nodes on free ports, without root or containers."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.cluster import kuberay, tenancy
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.kube import Kube
from tests.e2e.cluster.processes import Processes, minimal_environment
from tests.fast_tier import nodes
from tests.processes import ended

import gotools

ROOT = Path(__file__).resolve().parents[2]
CLUSTER_MANIFESTS = ROOT / "manifests" / "cluster" / "base"
COMPONENTS = ROOT / "manifests" / "cluster" / "components"
_VOLUMES_PER_NAMESPACE = 24  # five claims of manifests/cluster, the rest for runs


class FastTier:
    """A running tier. `admin` may do everything; `user(namespace)` is a person with the Role `opd-user` there."""

    def __init__(self, folder: Path) -> None:
        """Start everything in a folder (certificates, etcd's data, logs); `stop` it also when this raises later."""
        self.folder = folder
        self.logs = folder / "logs"
        self.processes = Processes(self.logs, environment=minimal_environment(folder))
        self.plane = ControlPlane(folder, self.processes)
        self.admin = self.plane.admin
        self._users: dict[str, Kube] = {}

    def start(self) -> None:
        """Start the parts, each as soon as what it needs is there.

        Raises:
            PartError: one does not come up; the text names it and quotes its log.
        """
        self.plane.start_api()
        kuberay.install_crds(self.plane)
        self.plane.start_controllers()
        self._start_kwok()
        self.admin.create([*nodes.NODES, tenancy.storage_class(nodes.STORAGE_CLASS)])
        self.plane.wait_for_controllers()
        kuberay.start_operator(self.plane)
        self.processes.wait_for("kwok", self._are_nodes_ready)

    def stop(self) -> None:
        """Stop everything that was started."""
        self.processes.stop_all()

    def user(self, namespace: str) -> Kube:
        """A person with the Role `opd-user` in a namespace; `.kubeconfig` is the file, `.environment` for helm and opdctl."""
        if namespace not in self._users:
            self._users[namespace] = self.plane.user(namespace)
        return self._users[namespace]

    def namespace(self, name: str, *, quota: Mapping[str, str] | None = None, components: Sequence[str] = ()) -> Kube:
        """manifests/cluster with quota, claims and more components, under another namespace's name; returns its `opd-user`.

        `quota` replaces values of the ResourceQuota. Returns once quota, service account and claims are ready.
        """
        folder = self.folder / "namespaces" / name
        folder.mkdir(parents=True)
        patches: list[dict[str, Any]] = [{"target": {"kind": "Namespace"}, "patch": _replace("/metadata/name", name)}]
        if quota:
            patch = {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "opd"},
                "spec": {"hard": dict(quota)},
            }
            patches.append({"target": {"kind": "ResourceQuota"}, "patch": json.dumps(patch)})
        base = os.path.relpath(CLUSTER_MANIFESTS, folder.resolve())
        components = [os.path.relpath(COMPONENTS / part, folder.resolve()) for part in ("quota", "claims", *components)]
        text = yaml.safe_dump({"namespace": name, "resources": [base], "components": components, "patches": patches})
        (folder / "kustomization.yaml").write_text(text)
        self.admin.create(nodes.volume(f"{name}-{number}") for number in range(_VOLUMES_PER_NAMESPACE))
        self.admin.apply("--force-conflicts", "-k", str(folder))
        self.admin.until(f"namespace {name} is ready", lambda: tenancy.is_ready(self.admin, name))
        return self.user(name)

    def helm(self, namespace: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """helm as the namespace's `opd-user`."""
        words = (gotools.find("helm"), *arguments, "--namespace", namespace)
        return ended(*words, env=self.user(namespace).environment, timeout=300)

    def _start_kwok(self) -> None:
        # Its stages; of the Jobs' pods only the chart's check ends.
        stages = gotools.module("kwok") / "kustomize" / "stage" / "pod" / "fast"
        complete = yaml.safe_load((stages / "pod-complete.yaml").read_text())
        complete["spec"]["selector"]["matchLabels"] = {"app.kubernetes.io/component": "check"}
        (self.folder / "check-complete.yaml").write_text(yaml.safe_dump(complete))
        kubeconfig = self.plane.kubeconfig("kwok", groups=["system:masters"])
        command: list[str | Path] = [gotools.find("kwok"), f"--kubeconfig={kubeconfig}", "--manage-all-nodes=true"]
        files = (stages / "pod-ready.yaml", stages / "pod-delete.yaml", self.folder / "check-complete.yaml")
        command += [f"--config={file}" for file in files]
        self.processes.start("kwok", [*command, "--node-lease-duration-seconds=40"])

    def _are_nodes_ready(self) -> bool:
        path = "{.items[*].status.conditions[?(@.type=='Ready')].status}"
        states = self.admin.run("get", "nodes", "-o", f"jsonpath={path}").split()
        return states == ["True"] * len(nodes.NODES)


def _replace(path: str, value: Any) -> str:
    return json.dumps([{"op": "replace", "path": path, "value": value}])
