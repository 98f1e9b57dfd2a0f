"""Pods that are asked to go: evicted, preempted, suspended, uninstalled. The preStop hook has the trainer save first."""

from __future__ import annotations

import json
import time

from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.recovery import RESUMED
from tests.e2e.scenarios.losses import install
from tests.e2e.scenarios.run import Run
from tests.e2e.scenarios.scene import Scene

_URGENT = "urgent"
_SUSPENDABLE = ("cluster.lifecycle=suspendable",)
_URGENT_CPU_M = 1000


def evicted_preempted(scene: Scene) -> None:
    """The worker is evicted; in the second attempt a pod of a higher PriorityClass takes its place for a while."""
    run = Run(scene, "opd", "evicted-preempted")
    with run.recorded():
        # The chart's budget would refuse the eviction.
        sets = (f"cluster.worker.requests.cpu={_big_worker_m(scene)}m", "cluster.disruption.budget=false")
        install(run, sets=sets)
        with run.followed():
            run.until_step(2)
            _evict(scene, run.pods("worker")[0]["metadata"]["name"])
            run.until_step(4, after=run.until_attempt(2))
            _preempt(scene, run)
            run.until_ended()
    run.uninstall()


def suspended_resumed(scene: Scene) -> None:
    """A RayJob is suspended and resumed by its `spec.suspend`, as its lifecycle allows."""
    run = Run(scene, "opd", "suspended")
    with run.recorded():
        install(run, sets=_SUSPENDABLE)
        with run.followed():
            run.until_step(3)
            _suspend(scene, run, is_suspended=True)
            run.until_no_pods()
            scene.evidence.tree("while-suspended.json", {"pods": run.all_pods(), "rayjob": run.rayjob()})
            scene.evidence.tree(RESUMED, {"time": time.time()})
            _suspend(scene, run, is_suspended=False)
            run.until_ended()
    run.uninstall()


def _suspend(scene: Scene, run: Run, *, is_suspended: bool) -> None:
    patch = json.dumps({"spec": {"suspend": is_suspended}})
    scene.user.run("patch", "rayjob", run.name, "-n", NAMESPACE, "--type=merge", "-p", patch)


def uninstalled(scene: Scene) -> None:
    """`helm uninstall` in mid-run, and the same installed again."""
    run = Run(scene, "opd", "reinstalled")
    with run.recorded():
        install(run)
        with run.followed():
            run.until_step(3)
            run.uninstall()
        install(run)
        with run.followed():
            run.until_ended()
    run.uninstall()


def _big_worker_m(scene: Scene) -> int:
    """Millicores with which the urgent pod has room beside everything but the worker."""
    [node] = scene.admin.items("nodes")
    return int(node["status"]["allocatable"]["cpu"]) * 1000 - _URGENT_CPU_M + 100


def _evict(scene: Scene, name: str) -> None:
    """By the eviction API, as a drained node does."""
    scene.say(f"evict {name}")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    scene.admin.run("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def _preempt(scene: Scene, run: Run) -> None:
    """A pod that needs the worker's share and outranks it, until it has run for a moment."""
    worker = run.pods("worker")[0]["metadata"]["name"]
    scene.say(f"a more urgent pod comes: {worker} has to make room")
    image = run.pods("head")[0]["spec"]["containers"][0]["image"]
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": _URGENT},
        "value": 1000,
    }
    scene.admin.create([priority])
    container = {
        "name": "urgent",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": f"{_URGENT_CPU_M}m"}},
    }
    spec = {"priorityClassName": _URGENT, "terminationGracePeriodSeconds": 0, "containers": [container]}
    try:
        scene.admin.create([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _URGENT}, "spec": spec}])
        look = lambda: scene.admin.get("pod", _URGENT)["status"]["phase"] == "Running"  # noqa: E731
        scene.admin.until("the urgent pod runs", look, timeout_s=200)
        time.sleep(2)
    finally:
        scene.admin.run("delete", "pod", _URGENT, "--wait=true", "--ignore-not-found")
        scene.admin.run("delete", "priorityclass", _URGENT)
