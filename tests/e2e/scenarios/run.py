"""One run on the cluster, by the commands of a person: installed, followed, looked at, uninstalled; every word kept."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.cluster.kube import KubeError, Tree
from tests.e2e.cluster.services import BUCKET
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.common import OVERRIDES, STEP
from tests.e2e.scenarios.scene import PREFIX, ROOT, Scene

import gotools

EXPERIMENTS = ROOT / "manifests" / "experiments"
END = ("Complete", "Failed", "ValidationFailed")
RUN_TIMEOUT_S = 900
# What is small and says how the run went; checkpoints are only listed.
_KEPT_OBJECTS = ("run.json", "result.json", "fatal.json", "owner.json", "ended.json", "metrics.jsonl", "driver.log")
_KEPT_PARTS = ("metrics.jsonl.", "driver.log.")


class Run:
    """A release of one of the charts.

    Args:
        scene: where it plays.
        kind: the chart.
        name: the release's, and so the run's.
    """

    def __init__(self, scene: Scene, kind: str, name: str) -> None:
        self.scene, self.kind, self.name = scene, kind, name
        self.selector = f"opd/run-id={name}"
        self._followed = scene.evidence.folder / f"{name}.opdctl-logs.txt"

    # -- what a person does

    def install(self, experiment: Path, *overrides: Path, sets: Sequence[str] = ()) -> None:
        """`helm install`: the experiment, this cluster's overrides, then `key=value` words."""
        files = self._values(experiment, overrides)
        words = ["install", self.name, str(ROOT / "charts" / self.kind), *_each("-f", files), *_each("--set", sets)]
        self.scene.evidence.append(f"{self.name}.install.txt", self.helm(*words))

    def submit(self, experiment: Path, *overrides: Path, sets: Sequence[str] = ()) -> None:
        """`make submit EXP=...`, with the overrides as the tool takes them."""
        _, *files = self._values(experiment, overrides)
        words = [*_each("-f", files), *_each("--set", sets), "--name", self.name, "-n", NAMESPACE]
        command = ["make", "--no-print-directory", "submit", f"EXP={experiment}", f"ARGS={' '.join(words)}"]
        self.scene.evidence.append(f"{self.name}.install.txt", self._output(command, timeout_s=300))

    def uninstall(self) -> None:
        """`helm uninstall`, until the run's pods are gone."""
        self.scene.evidence.append(f"{self.name}.uninstall.txt", self.helm("uninstall", self.name, timeout_s=600))
        self.until_no_pods()

    def helm(self, *arguments: str, timeout_s: float = 120) -> str:
        """What helm says."""
        return self._output([str(gotools.find("helm")), *arguments, "--namespace", NAMESPACE], timeout_s=timeout_s)

    def opdctl(self, *arguments: str, timeout_s: float = 300) -> str:
        """What the tool says; it finds the store's address in the run and the credentials in its environment."""
        return self._output([str(ROOT / ".venv/bin/opdctl"), *arguments], timeout_s=timeout_s)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """`opdctl logs -f` while the block runs, from when the RayJob is there; `until_step` reads what it prints."""
        self.scene.user.until("the RayJob is there", self.rayjob)
        command = [str(ROOT / ".venv/bin/opdctl"), "logs", "-f", self.name, "-n", NAMESPACE]
        with open(self._followed, "ab") as out:
            follower = subprocess.Popen(command, env=self._environment(), stdout=out, stderr=subprocess.STDOUT)
        try:
            yield
            follower.wait(60)
        except subprocess.TimeoutExpired:
            self.scene.evidence.append(f"{self.name}.follow.txt", "opdctl logs -f did not end with the run\n")
        finally:
            if follower.poll() is None:
                follower.send_signal(signal.SIGINT)
                follower.wait(30)

    # -- what is seen

    def rayjob(self) -> Tree:
        """The RayJob now."""
        return self.scene.user.get("rayjob", self.name, namespace=NAMESPACE)

    def status(self) -> Tree:
        """The RayJob's status, empty before the operator has seen it."""
        return self.rayjob().get("status", {})

    def pods(self, role: str = "") -> list[Tree]:
        """The run's pods that nobody has deleted, of one role or all."""
        return [pod for pod in self.all_pods(role) if "deletionTimestamp" not in pod["metadata"]]

    def all_pods(self, role: str = "") -> list[Tree]:
        """The same and those that are on their way out."""
        selector = self.selector + (f",app.kubernetes.io/component={role}" if role else "")
        return self.scene.user.items("pods", namespace=NAMESPACE, selector=selector)

    def steps(self) -> list[int]:
        """Steps whose line the followed log has shown so far, in its order."""
        text = self._followed.read_text(errors="replace") if self._followed.is_file() else ""
        return [int(step) for step, _ in STEP.findall(text)]

    def until_step(self, step: int, *, after: int = 0, timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Wait for a step's line behind the first `after` lines of steps.

        Raises:
            TimeoutError: the run ended without, or did not come to it.
        """

        def is_reached() -> bool:
            if any(seen >= step for seen in self.steps()[after:]):
                return True
            if self.status().get("jobDeploymentStatus") in END:
                raise TimeoutError(f"{self.name} ended before step {step}")
            return False

        self.scene.user.until(f"{self.name} is at step {step}", is_reached, timeout_s=timeout_s)
        self.scene.say(f"{self.name} is at step {self.steps()[-1]}")

    def until_ended(self, *, timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Wait until KubeRay calls the RayJob ended."""
        ended = lambda: self.status().get("jobDeploymentStatus") in END  # noqa: E731
        self.scene.user.until(f"{self.name} ended", ended, timeout_s=timeout_s)
        status = self.status()
        self.scene.say(f"{self.name} ended: {status['jobDeploymentStatus']}, {status.get('jobStatus')}")

    def until_no_pods(self, *, timeout_s: float = 300) -> None:
        """Wait until the kernel has nothing left of the run's pods."""
        gone = lambda: not self.all_pods()  # noqa: E731
        self.scene.user.until(f"{self.name} has no pods", gone, timeout_s=timeout_s)

    def until_attempt(self, number: int, *, timeout_s: float = 400) -> int:
        """Wait until an attempt has claimed the run; returns how many step lines were shown by then."""
        name = f"{BUCKET}/{PREFIX}/{self.name}/attempts/{number:04d}/owner.json"
        files = self.scene.files()
        self.scene.user.until(f"{self.name} has attempt {number}", lambda: files.exists(name), timeout_s=timeout_s)
        self.scene.say(f"{self.name} has attempt {number}")
        return len(self.steps())

    def lose(self, pod: Tree) -> None:
        """A pod as its node is lost: its processes are gone at once, then the API server forgets it."""
        self.scene.kill_pod(pod)
        name = pod["metadata"]["name"]
        self.scene.user.run("delete", "pod", name, "-n", NAMESPACE, "--grace-period=0", "--force", "--wait=false")

    def gather(self) -> None:
        """Keep what is left to see: RayJob, events, pods, the store's listing and its small files."""
        evidence, user = self.scene.evidence, self.scene.user
        try:
            evidence.text(
                f"{self.name}.rayjob.yaml", user.run("get", "rayjob", self.name, "-n", NAMESPACE, "-o", "yaml")
            )
        except KubeError as error:
            evidence.text(f"{self.name}.rayjob.yaml", f"# {error}\n")
        events = user.items("events", namespace=NAMESPACE)
        evidence.tree(f"{self.name}.events.json", [event for event in events if _is_about(event, self.name)])
        evidence.tree(f"{self.name}.pods.json", self.all_pods())
        files, names = self.scene.files(), self.scene.objects(f"{PREFIX}/{self.name}/")
        evidence.text(f"{self.name}.s3.txt", "\n".join(names))
        for name in names:
            last = name.rpartition("/")[2]
            if (last in _KEPT_OBJECTS or last.startswith(_KEPT_PARTS)) and "/checkpoints/" not in name:
                evidence.data(
                    f"{self.name}.store/{name.removeprefix(f'{BUCKET}/{PREFIX}/{self.name}/')}", files.cat(name)
                )

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Every change of the run's pods and RayJob while the block runs, by `kubectl get -w`; then what is left."""
        watches = [
            self._watch("pods", ["pods", "-l", self.selector]),
            self._watch("rayjobs", ["rayjobs", "--field-selector", f"metadata.name={self.name}"]),
        ]
        try:
            yield
        finally:
            time.sleep(1)  # the last change is on its way
            for watch in watches:
                watch.terminate()
                watch.wait(30)
            self.gather()

    def _watch(self, what: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        command = [str(gotools.find("kubectl")), "get", *arguments, "-n", NAMESPACE]
        command += ["--watch", "--output-watch-events", "-o", "json"]
        with open(self.scene.evidence.folder / f"{self.name}.{what}.watch", "ab") as out:
            return subprocess.Popen(command, env=self.scene.user.environment, stdout=out, stderr=subprocess.DEVNULL)

    def _values(self, experiment: Path, overrides: Sequence[Path]) -> list[Path]:
        return [experiment, OVERRIDES / "common.yaml", *overrides, self.scene.image]

    def _environment(self) -> dict[str, str]:
        """The user's, with the store's credentials, and helm where this machine has it."""
        tools = {gotools.CACHE_VARIABLE: str(gotools.cache_dir())}
        return {**self.scene.user.environment, **self.scene.store(), **tools, "COLUMNS": "160"}

    def _output(self, command: list[str], *, timeout_s: float) -> str:
        """What a command said, with an exit code that is not 0 as the last line."""
        done = subprocess.run(
            command,
            env={**self._environment(), "PYTHON": os.environ.get("PYTHON", "python3")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return done.stdout + done.stderr + (f"exit {done.returncode}\n" if done.returncode else "")


def _each(flag: str, values: Sequence[object]) -> list[str]:
    return [word for value in values for word in (flag, str(value))]


def _is_about(event: Tree, run: str) -> bool:
    name = event["involvedObject"].get("name", "")
    return name == run or name.startswith(f"{run}-")
