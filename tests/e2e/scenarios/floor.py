"""The least that a first step can take here: a bare RayJob on the same image, and the trainer without Kubernetes."""

from __future__ import annotations

import os
import re
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
_MARKS = {
    "Ray": re.compile("^starting Ray", re.M),
    "trainer": re.compile("^starting trainer", re.M),
    "first step": STEP,
}
_CONTAINER = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_POD = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "runAsNonRoot": True}


def measure(scene: Scene) -> None:
    """Keep `floor.json`: seconds of each part. The first of two finds the image's or the packages' files on the disk alone;
    the second, like the run to compare with, finds them in memory."""
    ref = yaml.safe_load(scene.image.read_text())["cluster"]["image"]["ref"]
    bare, trainer = [_bare_rayjob(scene, ref) for _ in range(2)], [_trainer(scene, number) for number in range(2)]
    names = ("kuberay", bare), ("trainer", trainer)
    scene.evidence.tree(
        "floor.json",
        {f"{name}{end}_s": found[number] for name, found in names for number, end in ((0, "_first"), (1, ""))},
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

    try:
        scene.user.until("the bare RayJob's entrypoint runs", has_spoken, timeout_s=300)
        seconds = round(time.monotonic() - began, 1)
        scene.say(f"a bare RayJob's entrypoint runs after {seconds} s")
    finally:
        scene.user.run("delete", "rayjob", _BARE, "-n", NAMESPACE, "--wait=true", timeout_s=120)
    gone = lambda: not scene.user.items("pods", namespace=NAMESPACE)  # noqa: E731
    scene.user.until("the bare RayJob's pods are gone", gone, timeout_s=120)
    return seconds


def _trainer(scene: Scene, number: int) -> float:
    """Seconds from the start of `opd.launch` on this machine, outside any pod, to the first step's line.

    Without those of Ray's own start, which a RayJob's cluster has behind it.
    """
    folder, log = scene.evidence.folder / f"floor-{number}", scene.evidence.folder / f"floor-{number}.log"
    words = ["-m", "opd.launch", str(EXPERIMENTS / "quickstart.yaml"), "--set", "trainer.total_steps=1"]
    words += ["--set", f"output.root={folder}", "--set", f"store.url={folder}/store", "--set", "trainer.save_freq=-1"]
    began, seen = time.monotonic(), dict.fromkeys(_MARKS, 0.0)
    with open(log, "wb") as out:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        while not all(seen.values()):
            text = log.read_text(errors="replace")
            for mark, pattern in _MARKS.items():
                if not seen[mark] and pattern.search(text):
                    seen[mark] = time.monotonic() - began
            if process.poll() is not None or time.monotonic() - began > 300:
                raise TimeoutError(f"the trainer shows no step: {log}")
            time.sleep(0.05)
        process.wait(120)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    seconds = round(seen["first step"] - (seen["trainer"] - seen["Ray"]), 1)
    scene.say(f"the trainer's own first step takes {seconds} s, and Ray's start {seen['trainer'] - seen['Ray']:.1f} s")
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
