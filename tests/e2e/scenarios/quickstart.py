"""Scenario 1: `helm install` of the quickstart as `opd-user`, from the first pod to the uninstalled release."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import s3fs
from tests.e2e.cluster.kube import Kube, KubeError, Tree
from tests.e2e.cluster.services import BUCKET
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.scenarios.evidence import Evidence
from tests.e2e.scenarios.promises import STEP

import gotools

ROOT = Path(__file__).resolve().parents[3]
RUN = "quickstart"
_SELECTOR = f"opd/run-id={RUN}"
_RUN_TIMEOUT_S = 1200
_END = ("Complete", "Failed", "ValidationFailed")


def run(user: Kube, evidence: Evidence, image: Path, store: dict[str, str]) -> None:
    """Gather the evidence; `image` is a values file with the image's reference, `store` what a client of S3 needs.

    Judges nothing: a step that does not come to its end within its time leaves evidence that breaks its promise.
    """
    evidence.text("install.txt", _install(user, "opd", RUN, image))
    log, timeline = evidence.folder / "kubectl-logs.txt", Timeline(evidence)
    follower = _follow(user, log, timeline)
    _watch(user, evidence, log, timeline)
    follower.wait(60)
    evidence.tree("rayjob.json", user.get("rayjob", RUN, namespace=NAMESPACE))
    evidence.tree("events.json", user.items("events", namespace=NAMESPACE))
    evidence.text("s3.txt", "\n".join(_objects(store)))
    evidence.text("collect.txt", _tool(user, store, "collect", RUN, "--store", f"s3://{BUCKET}/{RUN}"))
    _until_gone(user)
    evidence.tree("after-ttl.json", {**_left(user), "release": _release(user)})
    evidence.text("uninstall.txt", _helm(user, "uninstall", RUN))
    evidence.tree("after-uninstall.json", _left(user))
    evidence.text("s3-after.txt", "\n".join(_objects(store)))
    _convert(user, evidence, image, store)


def _convert(user: Kube, evidence: Evidence, image: Path, store: dict[str, str]) -> None:
    """The trained student to a Hugging Face folder in the store, by the kind `convert`."""
    evidence.text("convert-install.txt", _install(user, "convert", "convert", image))
    user.until("the conversion ended", lambda: _phase(user, "convert") in _END, timeout_s=_RUN_TIMEOUT_S)
    evidence.tree("convert-rayjob.json", user.get("rayjob", "convert", namespace=NAMESPACE))
    evidence.text("s3-model.txt", "\n".join(name for name in _objects(store) if "/model/" in name))
    evidence.text("convert-uninstall.txt", _helm(user, "uninstall", "convert"))


def _install(user: Kube, kind: str, name: str, image: Path) -> str:
    values = [ROOT / f"manifests/experiments/{name}.yaml", ROOT / f"tests/e2e/overrides/{name}.yaml", image]
    flags = [word for path in values for word in ("-f", str(path))]
    return _helm(user, "install", name, str(ROOT / "charts" / kind), *flags)


def _phase(user: Kube, run: str) -> str:
    return user.get("rayjob", run, namespace=NAMESPACE).get("status", {}).get("jobDeploymentStatus", "")


class Timeline:
    """When each stage was first seen, in seconds from `helm install`; kept as timeline.json."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._begin = time.monotonic()
        self.seen: dict[str, float] = {}

    def mark(self, stage: str) -> None:
        """The stage is reached, unless it was before."""
        if stage not in self.seen:
            self.seen[stage] = round(time.monotonic() - self._begin, 1)
            self._evidence.tree("timeline.json", self.seen)


def _follow(user: Kube, log: Path, timeline: Timeline) -> subprocess.Popen[bytes]:
    """`kubectl logs -f` of the submitter's Job, from when its container runs."""
    user.until("the submitter runs", lambda: _is_submitter_running(user, timeline), timeout_s=_RUN_TIMEOUT_S)
    command = [str(gotools.find("kubectl")), "logs", "-f", f"job/{RUN}", "-n", NAMESPACE]
    with open(log, "wb") as file:
        return subprocess.Popen(command, env=user.environment, stdout=file, stderr=subprocess.STDOUT)


def _is_submitter_running(user: Kube, timeline: Timeline) -> bool:
    for pod in user.items("pods", namespace=NAMESPACE, selector=_SELECTOR):
        role = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for condition in pod["status"].get("conditions", ()):
            if condition["status"] == "True" and condition["type"] in ("PodScheduled", "Ready"):
                timeline.mark(f"{role} {condition['type']}")
        if role == "submitter" and pod["status"]["phase"] in ("Running", "Succeeded", "Failed"):
            return True
    return False


def _watch(user: Kube, evidence: Evidence, log: Path, timeline: Timeline) -> None:
    """Until the RayJob ended; keeps the pods as they are at the first step."""

    def has_ended() -> bool:
        if "first step" not in timeline.seen and STEP.search(log.read_text(errors="replace")):
            timeline.mark("first step")
            evidence.tree("pods-running.json", user.items("pods", namespace=NAMESPACE, selector=_SELECTOR))
        return _phase(user, RUN) in _END

    user.until("the RayJob ended", has_ended, timeout_s=_RUN_TIMEOUT_S)
    timeline.mark("ended")


def _until_gone(user: Kube) -> None:
    user.until("the RayJob is cleaned up", lambda: not user.items("rayjobs", namespace=NAMESPACE), timeout_s=180)
    gone = lambda: not user.items("pods", namespace=NAMESPACE, selector=_SELECTOR)  # noqa: E731
    user.until("its pods are gone", gone, timeout_s=120)


def _left(user: Kube) -> dict[str, list[Tree]]:
    found = {kind: user.items(kind, namespace=NAMESPACE, selector=_SELECTOR) for kind in ("pods", "configmaps")}
    found |= {
        kind: user.items(kind, namespace=NAMESPACE) for kind in ("rayjobs", "rayclusters")
    }  # nobody else's are here
    try:
        claims = [user.get("persistentvolumeclaim", f"{RUN}-checkpoints", namespace=NAMESPACE)]
    except KubeError:
        claims = []
    return {**found, "claims": claims}


def _release(user: Kube) -> str:
    text = _helm(user, "status", RUN)
    return next((line.split(": ")[1] for line in text.splitlines() if line.startswith("STATUS: ")), "none")


def _helm(user: Kube, *arguments: str) -> str:
    command = [str(gotools.find("helm")), *arguments, "--namespace", NAMESPACE]
    done = subprocess.run(command, env=user.environment, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def _tool(user: Kube, store: dict[str, str], *arguments: str) -> str:
    command = [str(ROOT / ".venv/bin/opdctl"), *arguments]
    environment = {**user.environment, **store, "COLUMNS": "160"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr


def _objects(store: dict[str, str]) -> list[str]:
    files = s3fs.S3FileSystem(
        key=store["AWS_ACCESS_KEY_ID"],
        secret=store["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=store["AWS_ENDPOINT_URL"],
        use_listings_cache=False,
    )
    return sorted(files.find(f"{BUCKET}/{RUN}"))
