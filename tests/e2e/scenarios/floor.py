"""The least that a first step can take here: a bare RayJob on the same image, and the trainer without Kubernetes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

import yaml
from tests.e2e.cluster.kube import KubeError, Tree
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.common import STEP
from tests.e2e.scenarios.run import EXPERIMENTS
from tests.e2e.scenarios.scene import ROOT, Scene

_BARE = "bare"
_WORD = "the entrypoint runs"
_CONTAINER = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_POD = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "runAsNonRoot": True}


def measure(scene: Scene) -> None:
    """Keep `floor.json`: seconds of each part, the pods' first start on the image among them."""
    ref = yaml.safe_load(scene.image.read_text())["cluster"]["image"]["ref"]
    seconds = [_bare_rayjob(scene, ref) for _ in range(2)]  # the second finds the image's files in memory, as ours will
    scene.evidence.tree(
        "floor.json", {"kuberay_first_s": seconds[0], "kuberay_s": seconds[1], "trainer_s": _trainer(scene)}
    )


def _bare_rayjob(scene: Scene, image: str) -> float:
    """Seconds from the creation of a RayJob as KubeRay's users write it to its entrypoint's word in the submitter's log."""
    began = time.monotonic()
    scene.user.create([_rayjob(image)], namespace=NAMESPACE)

    def has_spoken() -> bool:
        try:
            return _WORD in scene.user.run("logs", f"job/{_BARE}", "-n", NAMESPACE)
        except KubeError:
            return False

    scene.user.until("the bare RayJob's entrypoint runs", has_spoken, timeout_s=300)
    seconds = round(time.monotonic() - began, 1)
    scene.say(f"a bare RayJob's entrypoint runs after {seconds} s")
    scene.user.run("delete", "rayjob", _BARE, "-n", NAMESPACE, "--wait=true", timeout_s=120)
    gone = lambda: not scene.user.items("pods", namespace=NAMESPACE)  # noqa: E731
    scene.user.until("the bare RayJob's pods are gone", gone, timeout_s=120)
    return seconds


def _trainer(scene: Scene) -> float:
    """Seconds from the start of `opd.launch` on this machine, outside any pod, to the first step's line."""
    folder = scene.evidence.folder / "floor"
    words = ["-m", "opd.launch", str(EXPERIMENTS / "quickstart.yaml"), "--no-env", "--set", "trainer.total_steps=1"]
    words += ["--set", f"output.root={folder}", "--set", f"store.url={folder}/store", "--set", "trainer.save_freq=-1"]
    log = scene.evidence.folder / "floor.log"
    began = time.monotonic()
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            while not STEP.search(log.read_text(errors="replace")):
                if process.poll() is not None or time.monotonic() - began > 300:
                    raise TimeoutError(f"the trainer shows no step: {log}")
                time.sleep(0.05)
            seconds = round(time.monotonic() - began, 1)
            process.wait(120)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(120)
    scene.say(f"the trainer's own first step is there after {seconds} s")
    return seconds


def _rayjob(image: str) -> Tree:
    def template(name: str, memory: str) -> Tree:
        container = {
            "name": name,
            "image": image,
            "imagePullPolicy": "Never",
            "securityContext": _CONTAINER,
            "resources": {"requests": {"cpu": "100m", "memory": memory}, "limits": {"memory": memory}},
            "env": [{"name": "HOME", "value": "/tmp"}],
        }
        return {"spec": {"securityContext": _POD, "containers": [container]}}

    submitter = template("submitter", "1Gi")
    submitter["spec"]["restartPolicy"] = "Never"
    worker: dict[str, Any] = {"groupName": "worker", "replicas": 1, "minReplicas": 1, "maxReplicas": 1}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": _BARE},
        "spec": {
            "entrypoint": f"echo {_WORD}",
            "submitterPodTemplate": submitter,
            "rayClusterSpec": {
                "rayVersion": metadata.version("ray"),  # else KubeRay probes by wget, which slim images lack
                "headGroupSpec": {
                    "rayStartParams": {"dashboard-host": "0.0.0.0", "object-store-memory": "100000000"},
                    "template": template("ray-head", "4Gi"),
                },
                "workerGroupSpecs": [
                    {
                        **worker,
                        "rayStartParams": {"object-store-memory": "100000000"},
                        "template": template("ray-worker", "4Gi"),
                    }
                ],
            },
        },
    }
