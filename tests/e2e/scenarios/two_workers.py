"""One run on two worker pods, looked at from all sides while it trains: what runs, who may talk to whom, what is said."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json

from tests.e2e.cluster.kube import KubeError
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.scenarios.run import EXPERIMENTS, OVERRIDES, Run
from tests.e2e.scenarios.scene import Scene

NAME = "two-workers"
_PROCESSES = (
    "import json,os,pathlib\n"
    "ranks = 0\n"
    "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
    "    try:\n"
    "        ranks += path.read_bytes().startswith(b'ray::WorkerDict')\n"
    "    except OSError:\n"
    "        pass\n"
    "token = os.path.exists('/var/run/secrets/kubernetes.io')\n"
    "print(json.dumps({'token': token, 'uid': os.getuid(), 'ranks': ranks}))"
)
_DASHBOARD = (
    "import json,os,urllib.request,urllib.error\n"
    "def ask(headers):\n"
    "    request = urllib.request.Request('http://127.0.0.1:8265/api/jobs/', headers=headers)\n"
    "    try:\n"
    "        return urllib.request.urlopen(request, timeout=20).status\n"
    "    except urllib.error.HTTPError as error:\n"
    "        return error.code\n"
    "token = os.environ.get('RAY_AUTH_TOKEN', '')\n"
    "print(json.dumps({'without': ask({}), 'with': ask({'Authorization': 'Bearer ' + token})}))"
)
_SECRET_KEYS = ("AWS_SECRET_ACCESS_KEY", "auth_token")  # of the store, of Ray
_CONTAINERS = {"head": "ray-head", "worker": "ray-worker", "submitter": "submitter"}


def play(scene: Scene) -> None:
    """Gather the evidence of the run and, at its first step, of its security."""
    run = Run(scene, "opd", NAME)
    with run.recorded():
        overrides = ("worker.yaml", "faults.yaml", "two-workers.yaml")
        run.install(EXPERIMENTS / "quickstart.yaml", *(OVERRIDES / name for name in overrides))
        with run.followed():
            run.until_step(1)
            _look(run)
            run.until_ended()
        _words(run)
    run.uninstall()


def _look(run: Run) -> None:
    """What only running pods can show."""
    scene, evidence = run.scene, run.scene.evidence
    pods = run.pods()
    evidence.tree("pods-running.json", pods)
    evidence.tree("namespace.json", scene.admin.get("namespace", NAMESPACE))
    evidence.tree("processes.json", {pod["metadata"]["name"]: _inside(scene, pod, _PROCESSES) for pod in pods})
    [head] = run.pods("head")
    evidence.tree("dashboard.json", _inside(scene, head, _DASHBOARD))


def _inside(scene: Scene, pod: dict, script: str) -> dict:
    """What a Python script in a pod's container prints as JSON; only an administrator may exec."""
    metadata = pod["metadata"]
    container = _CONTAINERS[metadata["labels"]["app.kubernetes.io/component"]]
    words = ["exec", metadata["name"], "-n", NAMESPACE, "-c", container, "--", "python", "-c", script]
    return json.loads(scene.admin.run(*words, timeout_s=120))


def _words(run: Run) -> None:
    """Every place where a secret could have been said, and fingerprints of the secrets to look for."""
    scene, evidence = run.scene, run.scene.evidence
    said = {
        "events": scene.user.run("get", "events", "-n", NAMESPACE, "-o", "json"),
        "configmaps": scene.user.run("get", "configmaps", "-n", NAMESPACE, "-o", "json"),
        "helm values": run.helm("get", "values", NAME, "--all"),
        "helm manifest": run.helm("get", "manifest", NAME),
    }
    for pod in scene.user.items("pods", namespace=NAMESPACE, selector=run.selector):
        name = pod["metadata"]["name"]
        with contextlib.suppress(KubeError):  # workers go first when a run has ended; the driver's log has their lines
            said[f"log of {name}"] = scene.user.run("logs", name, "-n", NAMESPACE, "--all-containers", timeout_s=120)
    for name, text in said.items():
        evidence.data(f"said/{name.replace(' ', '-')}.txt", text.encode())
    evidence.tree("secrets.json", _secrets(scene))


def _secrets(scene: Scene) -> dict[str, dict[str, str | int]]:
    """Secret/key -> length and SHA-256 of each value that nobody may say: enough to search for it, not to use it."""
    found: dict[str, dict[str, str | int]] = {}
    for secret in scene.user.items("secrets", namespace=NAMESPACE):
        for key, encoded in secret.get("data", {}).items():
            if key in _SECRET_KEYS:
                for form, value in (("plain", base64.b64decode(encoded)), ("base64", encoded.encode())):
                    fingerprint = {"length": len(value), "sha256": hashlib.sha256(value).hexdigest()}
                    found[f"{secret['metadata']['name']}/{key}/{form}"] = fingerprint
    return found
