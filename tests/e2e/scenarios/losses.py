"""Scenarios that lose pods: worker and head in mid-step, submitters, and workers by eviction and preemption."""

from __future__ import annotations

import json
import time

from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.faults import NUM_MANY_STEPS, NUM_SUBMITTERS_LOST, STORE_AWAY_S
from tests.e2e.scenarios.proxied import PROXIED_SECRET, proxied_store
from tests.e2e.scenarios.run import EXPERIMENTS, OVERRIDES, Run
from tests.e2e.scenarios.scene import Scene

_FAULTS = (OVERRIDES / "worker.yaml", OVERRIDES / "faults.yaml")
_HTTP = ("cluster.submissionMode=HTTPMode",)
_URGENT, _URGENT_CPU_M = "urgent", 1000
_MID_STEP_S = 1.0  # a step takes some seconds
# The Job waits 10, 20, 40 and 80 s before it makes another submitter: the run must outlast them.
_MANY_STEPS = (f"trainer.total_steps={NUM_MANY_STEPS}", "trainer.save_freq=20")


def install(run: Run, *, sets: tuple[str, ...] = ()) -> None:
    """A distillation of six slow steps."""
    run.install(EXPERIMENTS / "quickstart.yaml", *_FAULTS, sets=sets)


def worker_lost(scene: Scene) -> None:
    """A worker's pod is lost in mid-step; in the second attempt the kubelet is killed under `opdctl logs -f`."""
    run = Run(scene, "opd", "worker-lost")
    with run.recorded():
        install(run)
        with run.followed():
            _lose_in_mid_step(run, "worker")
            run.until_step(4, after=run.until_attempt(2))
            scene.kill_part("kubelet")
            run.until_ended()
    run.uninstall()


def head_lost(scene: Scene) -> None:
    """The head is lost in mid-step, the operator submitting; then the same with a submitter, and the operator is killed."""
    for name, sets in (("head-lost-http", _HTTP), ("head-lost-job", ())):
        run = Run(scene, "opd", name)
        with run.recorded():
            install(run, sets=sets)
            with run.followed():
                _lose_in_mid_step(run, "head")
                if name == "head-lost-job":
                    run.until_step(3, after=run.until_attempt(2))
                    scene.kill_part("ray-operator")
                run.until_ended()
        run.uninstall()


def _lose_in_mid_step(run: Run, role: str) -> None:
    """Behind step 3, so that what the checkpoint of step 2 does not hold is lost with it."""
    run.until_step(3)
    time.sleep(_MID_STEP_S)
    run.lose(run.pods(role)[0])


def submitter_lost(scene: Scene) -> None:
    """Four submitters, one after the other; meanwhile the store answers 503 for 30 s."""
    run = Run(scene, "opd", "submitter-lost")
    with run.recorded(), proxied_store(scene) as proxy:
        install(run, sets=(*_MANY_STEPS, f"cluster.secrets.store={PROXIED_SECRET}"))
        with run.followed():
            run.until_step(1)
            began_s, proxy.is_away = time.monotonic(), True
            for number in range(NUM_SUBMITTERS_LOST):
                [submitter] = scene.user.until("a submitter runs", lambda: _running(run, "submitter"), timeout_s=300)
                run.lose(submitter)
                if number == 0:
                    time.sleep(STORE_AWAY_S)
                    proxy.is_away = False
                    away = {"seconds": time.monotonic() - began_s, "num_refused": proxy.num_refused}
                    scene.evidence.tree("proxy.json", away)
            run.until_ended()
    run.uninstall()


def _running(run: Run, role: str) -> list[dict]:
    return [pod for pod in run.pods(role) if pod["status"]["phase"] == "Running"]


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
