"""`helm install` of the quickstart as `opd-user`: from the first pod to the uninstalled release, and its model converted."""

from __future__ import annotations

import subprocess

from tests.e2e.cluster.kube import KubeError, KubeTimeout, Tree
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.common import STEP
from tests.e2e.scenarios.run import EXPERIMENTS, OVERRIDES, RUN_TIMEOUT_S, Run
from tests.e2e.scenarios.scene import PREFIX, Scene

import gotools

NAME = "opd-run"
_STARTED = ("Running", "Succeeded", "Failed")


def play(scene: Scene) -> None:
    """Gather the evidence; judges nothing: what does not come to its end leaves evidence that breaks its promise."""
    run = Run(scene, "opd", NAME)
    with run.recorded():
        run.install(EXPERIMENTS / "quickstart.yaml", OVERRIDES / "worker.yaml", OVERRIDES / "six-steps.yaml")
        follower = _follow(run)
        try:
            _watch(run)
            follower.wait(60)
        finally:
            follower.kill()
    scene.evidence.text("collect.txt", run.opdctl("collect", NAME, "-n", NAMESPACE))
    scene.evidence.text("status.txt", run.opdctl("status", NAME, "-n", NAMESPACE))
    _until_gone(run)
    scene.evidence.tree("after-ttl.json", {**_left(run), "release": _release(run)})
    run.uninstall()
    scene.evidence.tree("after-uninstall.json", _left(run))
    scene.evidence.text("s3-after.txt", "\n".join(scene.objects(f"{PREFIX}/{NAME}/")))
    _convert(scene)


def _convert(scene: Scene) -> None:
    """The trained student to a Hugging Face folder in the store, by the kind `convert`."""
    run = Run(scene, "convert", "convert")
    with run.recorded():
        run.install(EXPERIMENTS / "convert.yaml", OVERRIDES / "convert.yaml")
        run.until_ended()
    scene.evidence.text("s3-model.txt", "\n".join(scene.objects(f"{PREFIX}/{NAME}/model/")))
    run.uninstall()


def _follow(run: Run) -> subprocess.Popen[bytes]:
    """`kubectl logs -f` of the submitter's Job, from when its container runs."""
    user = run.scene.user
    user.until("the submitter runs", lambda: _is_submitter_there(run), timeout_s=RUN_TIMEOUT_S)
    command = [str(gotools.find("kubectl")), "logs", "-f", f"job/{NAME}", "-n", NAMESPACE]
    with open(run.scene.evidence.folder / "kubectl-logs.txt", "wb") as file:
        return subprocess.Popen(command, env=user.environment, stdout=file, stderr=subprocess.STDOUT)


def _is_submitter_there(run: Run) -> bool:
    return any(pod["status"]["phase"] in _STARTED for pod in run.pods("submitter"))


def _watch(run: Run) -> None:
    """Until the RayJob ended; keeps the pods as they are at the first step."""
    evidence, log = run.scene.evidence, run.scene.evidence.folder / "kubectl-logs.txt"

    def is_at_first_step() -> bool:
        return bool(STEP.search(log.read_text(errors="replace")))

    run.scene.user.until("the first step's line", is_at_first_step, timeout_s=RUN_TIMEOUT_S)
    evidence.tree("pods-running.json", run.pods())
    run.until_ended()


def _until_gone(run: Run) -> None:
    user = run.scene.user
    user.until("the RayJob is cleaned up", lambda: not user.items("rayjobs", namespace=NAMESPACE), timeout_s=180)
    run.until_no_pods(timeout_s=120)


def _left(run: Run) -> dict[str, list[Tree]]:
    user = run.scene.user
    found = {kind: user.items(kind, namespace=NAMESPACE, selector=run.selector) for kind in ("pods", "configmaps")}
    found |= {
        kind: user.items(kind, namespace=NAMESPACE) for kind in ("rayjobs", "rayclusters")
    }  # nobody else's are here
    try:
        claims = [user.get("persistentvolumeclaim", f"{run.name}-checkpoints", namespace=NAMESPACE)]
    except KubeTimeout:
        raise
    except KubeError:
        claims = []
    return {**found, "claims": claims}


def _release(run: Run) -> str:
    text = run.helm("status", run.name)
    return next((line.split(": ")[1] for line in text.splitlines() if line.startswith("STATUS: ")), "none")
