"""Runs that cannot go on, and say so: no image, no room, no time left, no store."""

from __future__ import annotations

import json

from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.scenarios.losses import install
from tests.e2e.scenarios.proxied import PROXIED_SECRET, proxied_store
from tests.e2e.scenarios.run import Run
from tests.e2e.scenarios.scene import Scene

# Run -> what is wrong with it, and the word by which a pod's status says so.
_STUCK = {
    "no-image": ("cluster.image.ref=localhost/opd-cpu:nowhere", "ErrImageNeverPull"),
    "no-room": ("cluster.worker.requests.cpu=64", "Insufficient cpu"),
}
_ACTIVE_S, _PRE_RUNNING_S, _SAVE_S = 180, 80, 20
_DEADLINE = (
    f"cluster.deadlines.activeSeconds={_ACTIVE_S}",
    f"cluster.deadlines.preRunningSeconds={_PRE_RUNNING_S}",
    f"cluster.stop.saveSeconds={_SAVE_S}",
    "trainer.total_steps=200",
    "trainer.save_freq=100",
    "cluster.cleanUp.failed.workersSeconds=60",
    "cluster.cleanUp.failed.clusterSeconds=60",
)


def waiting(scene: Scene) -> None:
    """A bad image name, then a request that no node can meet."""
    for name, (wrong, word) in _STUCK.items():
        run = Run(scene, "opd", name)
        with run.recorded():
            install(run, sets=(wrong,))
            stuck = lambda: any(word in json.dumps(pod["status"]) for pod in run.pods())  # noqa: B023, E731
            scene.user.until(f"{name} says why it waits", stuck, timeout_s=120)
            scene.evidence.text(f"{name}.status.txt", run.opdctl("status", name, "-n", NAMESPACE))
        run.uninstall()


def deadline(scene: Scene) -> None:
    """A run that its deadline ends long before its last step."""
    run = Run(scene, "opd", "deadline")
    with run.recorded():
        install(run, sets=_DEADLINE)
        with run.followed():
            run.until_ended()
        run.until_no_pods_of("head", "worker")
    run.uninstall()


def store_gone(scene: Scene) -> None:
    """The store is away for good from the second step on."""
    run = Run(scene, "opd", "store-gone")
    with run.recorded(), proxied_store(scene) as proxy:
        install(run, sets=(f"cluster.secrets.store={PROXIED_SECRET}", "cluster.retries.backoffLimit=0"))
        with run.followed():
            run.until_step(1)
            proxy.is_away = True
            run.until_ended(timeout_s=1500)
            scene.evidence.text("volume.txt", _volume(run))
    run.uninstall()


def _volume(run: Run) -> str:
    """What the run's claim holds, seen from the head while it is there."""
    [head] = run.pods("head")
    words = ["exec", head["metadata"]["name"], "-n", NAMESPACE, "-c", "ray-head", "--", "find", ".", "-type", "f"]
    return run.scene.admin.run(*words, timeout_s=60)
