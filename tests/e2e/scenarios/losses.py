"""Pods that go without notice: a worker and a head lost in mid-step, submitters lost, a worker out of memory."""

from __future__ import annotations

import time

from tests.e2e.cluster.kube import KubeError, KubeTimeout
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.faults import NUM_MANY_STEPS, NUM_SUBMITTERS_LOST, STORE_AWAY_S
from tests.e2e.scenarios.proxied import PROXIED_SECRET, proxied_store
from tests.e2e.scenarios.run import EXPERIMENTS, OVERRIDES, Run
from tests.e2e.scenarios.scene import Scene

_FAULTS = (OVERRIDES / "worker.yaml", OVERRIDES / "faults.yaml")
_HTTP = ("cluster.submissionMode=HTTPMode",)
_MID_STEP_S = 1.0  # a step takes some seconds
# More than the pod's limit in many small processes: the kernel takes the largest first, which are the trainer's.
_FILL = """
import os, time
for _ in range(120):
    if os.fork() == 0:
        page = bytearray(b"x") * (96 << 20)
        time.sleep(60)
        os._exit(0)
    time.sleep(0.02)
time.sleep(60)
"""
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


def out_of_memory(scene: Scene) -> None:
    """Something in the worker's container takes more than its limit."""
    run = Run(scene, "opd", "out-of-memory")
    with run.recorded():
        install(run)
        with run.followed():
            run.until_step(3)
            worker = run.pods("worker")[0]["metadata"]["name"]
            scene.say(f"fill the memory of {worker}")
            words = ["exec", worker, "-n", NAMESPACE, "-c", "ray-worker", "--", "python", "-c", _FILL]
            try:
                scene.admin.run(*words, timeout_s=180)
            except KubeTimeout:
                raise
            except KubeError as error:  # killed, as it is meant to be
                scene.evidence.text("fill.txt", str(error))
            run.until_ended()
        scene.evidence.text("status.txt", run.opdctl("status", run.name, "-n", NAMESPACE))
    run.uninstall()


def _running(run: Run, role: str) -> list[dict]:
    return [pod for pod in run.pods(role) if pod["status"]["phase"] == "Running"]
