"""Runs that cannot go on, and say so: no image, no room, no time left, no store."""

from __future__ import annotations

import time

from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.scenarios.losses import install
from tests.e2e.scenarios.proxied import PROXIED_SECRET, proxied_store
from tests.e2e.scenarios.run import Run
from tests.e2e.scenarios.scene import Scene

_NO_IMAGE = ("cluster.image.ref=localhost/opd-cpu:nowhere",)
_NO_ROOM = ("cluster.worker.requests.cpu=64",)
_ACTIVE_S, _PRE_RUNNING_S, _SAVE_S = 180, 80, 20
_DEADLINE = (
    f"cluster.deadlines.activeSeconds={_ACTIVE_S}",
    f"cluster.deadlines.preRunningSeconds={_PRE_RUNNING_S}",
    f"cluster.stop.saveSeconds={_SAVE_S}",
    "trainer.total_steps=200",
    "trainer.save_freq=100",
)


def waiting(scene: Scene) -> None:
    """A bad image name and a request that no node can meet; both at once, as neither has anything to run."""
    runs = {"no-image": _NO_IMAGE, "no-room": _NO_ROOM}
    for name, sets in runs.items():
        run = Run(scene, "opd", name)
        with run.recorded():
            install(scene, name, sets=sets)
            scene.user.until(f"{name} says why it waits", lambda: _is_stuck(run), timeout_s=120)  # noqa: B023
            scene.evidence.text(f"{name}.status.txt", run.opdctl("status", name, "-n", NAMESPACE))
        run.uninstall()


def deadline(scene: Scene) -> None:
    """A run that its deadline ends long before its last step."""
    run = Run(scene, "opd", "deadline")
    with run.recorded():
        install(scene, run.name, sets=_DEADLINE)
        with run.followed():
            run.until_ended()
        run.until_no_pods_of("head", "worker")
    run.uninstall()


def store_gone(scene: Scene) -> None:
    """The store is away for good from the second step on."""
    run = Run(scene, "opd", "store-gone")
    with run.recorded(), proxied_store(scene) as proxy:
        install(scene, run.name, sets=(f"cluster.secrets.store={PROXIED_SECRET}", "cluster.retries.backoffLimit=0"))
        with run.followed():
            run.until_step(1)
            proxy.is_away = True
            run.until_ended(timeout_s=1500)
            time.sleep(1)
            scene.evidence.text("volume.txt", _volume(run))
    run.uninstall()


def _volume(run: Run) -> str:
    """What the run's claim holds, seen from the head while it is there."""
    [head] = run.pods("head")
    words = ["exec", head["metadata"]["name"], "-n", NAMESPACE, "-c", "ray-head", "--", "find", ".", "-type", "f"]
    return run.scene.admin.run(*words, timeout_s=60)


def _is_stuck(run: Run) -> bool:
    """Whether a pod waits for something that will not come."""
    for pod in run.pods():
        status = pod["status"]
        if any(one.get("reason") == "Unschedulable" for one in status.get("conditions", ())):
            return True
        if any("ErrImageNeverPull" in str(one["state"]) for one in status.get("containerStatuses", ())):
            return True
    return False
