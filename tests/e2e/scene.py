"""A scenario's stage: the cluster as its user and its administrator see it, the store, runs, and promises as seen.

Everything seen is kept below build/e2e/SCENARIO: output of commands, changes of pods and RayJobs, the store's small files.
"""

import base64
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import s3fs
import yaml
from tests.e2e.cluster.kube import Kube, KubeError, Tree
from tests.e2e.cluster.services import BUCKET, S3_SECRET
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.processes import ended

import gotools
from opd.experiment.load import read_document
from opd.experiment.tree import merge
from opd.runs.metrics import METRICS_FILE
from opd.runs.stream import read_streamed
from opd.store.local import LocalStore

ROOT = Path(__file__).resolve().parents[2]
OVERRIDES = Path(__file__).with_name("overrides")
EXPERIMENTS = ROOT / "manifests" / "experiments"
OPDCTL = str(ROOT / ".venv/bin/opdctl")
CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "e2e"  # store.url of overrides/common.yaml
END = ("Complete", "Failed", "ValidationFailed")
RUN_TIMEOUT_S = 900
STEP = re.compile(r"^step +(\d+)/(\d+)  loss ", re.MULTILINE)
# Small files that say how the run went; checkpoints are only listed.
_KEPT_OBJECTS = ("run.json", "result.json", "fatal.json", "owner.json", "ended.json", "metrics.jsonl", "driver.log")
_KEPT_PARTS = ("metrics.jsonl.", "driver.log.")


def override(name: str, section: str, key: str) -> Any:
    """Return the value of a key in an override file of this cluster."""
    return yaml.safe_load((OVERRIDES / name).read_text())[section][key]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One scenario's stage.

    Attributes:
        name: the scenario's.
        user: the namespaced `opd-user`, who installs, looks and deletes.
        admin: may do a node's or an operator's acts (evict, preempt).
        folder: gets everything seen.
        image: a values file with the image's reference.
        pids: file of the cluster's parts and their process ids.
        rows: one for each promise.
    """

    name: str
    user: Kube
    admin: Kube
    folder: Path
    image: Path
    pids: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"{datetime.datetime.now():%H:%M:%S}  {self.name}: {text}", flush=True)

    def promise(self, promise: str, is_kept: bool, observed: object) -> None:
        """Record whether a promise was kept, with the observation."""
        self.say(f"{'kept  ' if is_kept else 'BROKEN'}  {promise} ({observed})")
        self.rows.append({"scenario": self.name, "promise": promise, "observed": str(observed), "ok": bool(is_kept)})

    def keep(self, name: str, content: Any) -> None:
        """Append text or bytes to a file of the folder; write other objects as JSON."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content, indent=1, sort_keys=True)
        with open(path, "ab") as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def store(self) -> dict[str, str]:
        """Return the variables of the store's Secret, which the runs use too."""
        data = self.user.get("secret", S3_SECRET, namespace=NAMESPACE)["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    @cached_property
    def files(self) -> s3fs.S3FileSystem:
        """A client of the store, past every proxy."""
        store = self.store()
        return s3fs.S3FileSystem(
            key=store["AWS_ACCESS_KEY_ID"],
            secret=store["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=store["AWS_ENDPOINT_URL"],
            use_listings_cache=False,
        )

    def objects(self, prefix: str) -> list[str]:
        """Return the names of the bucket's objects below a prefix, in order."""
        return sorted(self.files.find(f"{BUCKET}/{prefix}"))

    def begin_empty(self) -> None:
        """Forget the runs of earlier scenarios: a name that the store or a claim knows would be resumed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.user.run("delete", "persistentvolumeclaims", "-n", NAMESPACE, "-l", "opd/run-id", timeout_s=120)
        if self.files.exists(f"{BUCKET}/{PREFIX}"):
            self.files.rm(f"{BUCKET}/{PREFIX}", recursive=True)

    def kill_part(self, name: str) -> dict[str, Any]:
        """Send SIGKILL to a part of the cluster; return its process ids and the time once it runs again."""
        pid = self._pids()[name]
        self.say(f"kill {name}")
        os.kill(pid, signal.SIGKILL)
        killed = {"pid": pid, "time": time.time()}
        self.admin.until(f"{name} is started again", lambda: self._pids()[name] != pid, timeout_s=30)
        return {**killed, "next_pid": self._pids()[name]}

    def _pids(self) -> dict[str, Any]:
        return json.loads(self.pids.read_text())


class Run:
    """A release of one of the charts, by the commands of a person.

    Args:
        scene: its stage.
        kind: the chart.
        name: the release's, and so the run's.
    """

    def __init__(self, scene: Scene, kind: str, name: str) -> None:
        self.scene, self.kind, self.name = scene, kind, name
        self.selector = f"opd/run-id={name}"
        self.loss: dict[str, Any] = {}
        self._followed = scene.folder / f"{name}.logs.txt"

    # -- commands

    def install(self, experiment: Path, *overrides: str, sets: Sequence[str] = ()) -> None:
        """`helm install`: the experiment, this cluster's overrides, then `key=value` words."""
        files = [experiment, *self._overrides(overrides)]
        words = ["install", self.name, str(ROOT / "charts" / self.kind), *_each("-f", files), *_each("--set", sets)]
        self.scene.keep(f"{self.name}.install.txt", self.helm(*words))

    def submit(self, experiment: Path, *overrides: str, sets: Sequence[str] = ()) -> str:
        """`make submit EXP=...` of one file, the experiment with the overrides in it; returns its output."""
        trees = [read_document(path).tree for path in (experiment, *self._overrides(overrides))]
        self.scene.keep(f"{self.name}.exp.json", reduce(merge, trees))
        words = [*_each("--set", sets), "--name", self.name, "-n", NAMESPACE]
        command = ["make", "--no-print-directory", "submit", f"EXP={self.kept('exp.json')}", f"ARGS={' '.join(words)}"]
        said = self._output(command, timeout_s=300)
        self.scene.keep(f"{self.name}.install.txt", said)
        return said

    def uninstall(self) -> None:
        """`helm uninstall`, until the run's pods are gone."""
        self.scene.keep(f"{self.name}.uninstall.txt", self.helm("uninstall", self.name, timeout_s=600))
        self.until_no_pods()

    def helm(self, *arguments: str, timeout_s: float = 120) -> str:
        """Return helm's output."""
        return self._output([str(gotools.find("helm")), *arguments, "--namespace", NAMESPACE], timeout_s=timeout_s)

    def opdctl(self, *arguments: str, timeout_s: float = 300) -> str:
        """Return the tool's output; it finds the store's address in the run and the credentials in its environment."""
        return self._output([OPDCTL, *arguments], timeout_s=timeout_s)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record every change of the run's pods and RayJob during the block, then what is left."""
        watches = [
            self._watch("pods", "-l", self.selector),
            self._watch("rayjobs", "--field-selector", f"metadata.name={self.name}"),
        ]
        try:
            yield
        finally:
            time.sleep(1)  # the last change is on its way
            for watch in watches:
                watch.terminate()
                watch.wait(30)
            self._gather()

    @contextmanager
    def followed(self, *command: str) -> Iterator[None]:
        """`opdctl logs -f`, or a command, during the block, once the RayJob is there; `until_step` reads its output."""
        self.scene.user.until("the RayJob is there", self.rayjob)
        command = command or (OPDCTL, "logs", "-f", self.name, "-n", NAMESPACE)
        with open(self._followed, "ab") as out:
            follower = subprocess.Popen(command, env=self._environment(), stdout=out, stderr=subprocess.STDOUT)
        has_ended = True
        try:
            yield
            follower.wait(60)
        except subprocess.TimeoutExpired:
            has_ended = False
        finally:
            if follower.poll() is None:
                follower.send_signal(signal.SIGINT)
                follower.wait(30)
        promise = f"{self.name}: {Path(command[0]).name} logs -f ends with the run"
        self.scene.promise(promise, has_ended, has_ended)

    def lose(self, pod: Tree) -> None:
        """Lose a pod as its node's power cut does: SIGKILL to all processes, then the API server forgets it."""
        name, pids = pod["metadata"]["name"], _processes(pod)
        self.scene.say(f"kill the {len(pids)} processes of {name}")
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees another end, and tells of it
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it ended with another
                    os.kill(pid, number)
        self.loss = {"pod": name, "num_processes": len(pids), "time": time.time()}
        self.scene.user.run("delete", "pod", name, "-n", NAMESPACE, "--grace-period=0", "--force", "--wait=false")

    # -- the cluster now

    def rayjob(self) -> Tree:
        """Return the RayJob."""
        return self.scene.user.get("rayjob", self.name, namespace=NAMESPACE)

    def status(self) -> Tree:
        """Return the RayJob's status, empty before the operator has seen it."""
        return self.rayjob().get("status", {})

    def pods(self, role: str = "", *, deleted: bool = False) -> list[Tree]:
        """Return the run's pods, of one role or all; those that are being deleted as well if asked for."""
        selector = self.selector + (f",app.kubernetes.io/component={role}" if role else "")
        found = self.scene.user.items("pods", namespace=NAMESPACE, selector=selector)
        return [pod for pod in found if deleted or "deletionTimestamp" not in pod["metadata"]]

    def steps(self) -> list[int]:
        """Return the steps whose line the followed log has, in its order."""
        text = self._followed.read_text(errors="replace") if self._followed.is_file() else ""
        return [int(step) for step, _ in STEP.findall(text)]

    def until_step(self, step: int, *, after: int = 0) -> None:
        """Wait for a step's line after the first `after` lines of steps.

        Raises:
            TimeoutError: the run ended without the step, or did not reach it.
        """

        def is_reached() -> bool:
            if any(seen >= step for seen in self.steps()[after:]):
                return True
            if self.status().get("jobDeploymentStatus") in END:
                raise TimeoutError(f"{self.name} ended before step {step}")
            return False

        self.scene.user.until(f"{self.name} is at step {step}", is_reached, timeout_s=RUN_TIMEOUT_S)
        self.scene.say(f"{self.name} is at step {self.steps()[-1]}")

    def until_ended(self) -> None:
        """Wait until KubeRay calls the RayJob ended."""
        ended = lambda: self.status().get("jobDeploymentStatus") in END  # noqa: E731
        self.scene.user.until(f"{self.name} ended", ended, timeout_s=RUN_TIMEOUT_S)

    def until_no_pods(self, *, timeout_s: float = 300) -> None:
        """Wait until no pod of the run is left."""
        gone = lambda: not self.pods(deleted=True)  # noqa: E731
        self.scene.user.until(f"{self.name} has no pods", gone, timeout_s=timeout_s)

    def until_attempt(self, number: int) -> int:
        """Wait until an attempt has claimed the run; return the number of step lines by then."""
        name = f"{BUCKET}/{PREFIX}/{self.name}/attempts/{number:04d}/owner.json"
        exists = lambda: self.scene.files.exists(name)  # noqa: E731
        self.scene.user.until(f"{self.name} has attempt {number}", exists, timeout_s=400)
        return len(self.steps())

    # -- the recorded past

    def kept(self, name: str) -> Path:
        """Return the path of a file that the run left: `rayjob.yaml`, `store/...`."""
        return self.scene.folder / f"{self.name}.{name}"

    def last_rayjob(self) -> Tree:
        """Return the RayJob at the end."""
        return yaml.safe_load(self.kept("rayjob.yaml").read_text()) or {}

    def changes(self, what: str) -> Iterator[Tree]:
        """Yield the objects of a recorded watch (`pods`, `rayjobs`) at each change, but for a last one cut short."""
        decoder, rest = json.JSONDecoder(), self.kept(f"{what}.watch").read_text(errors="replace").lstrip()
        while rest:
            try:
                event, end = decoder.raw_decode(rest)
            except json.JSONDecodeError:
                return
            yield event["object"]
            rest = rest[end:].lstrip()

    def pod_names(self, role: str) -> list[str]:
        """Return the names of all pods that a role had, in order."""
        return list(dict.fromkeys(pod["metadata"]["name"] for pod in self.changes("pods") if role_of(pod) == role))

    def objects(self) -> list[str]:
        """Return the store's objects of the run at the end."""
        return self.kept("s3.txt").read_text().split()

    def attempts(self) -> list[str]:
        """Return the numbers of the attempts in the store, in order."""
        return sorted(path.parent.name for path in self.kept("store").glob("attempts/*/owner.json"))

    def rows(self, attempt: str) -> list[Tree]:
        """Return the rows that an attempt wrote, out of all parts in the store."""
        place = LocalStore(self.kept("store") / "attempts" / attempt)
        return [json.loads(line) for line in read_streamed(place, METRICS_FILE).splitlines()]

    def training(self) -> list[tuple[str, int]]:
        """Return (attempt, step) of each training step's row, in the order of attempts."""
        every = ((attempt, row) for attempt in self.attempts() for row in self.rows(attempt))
        return [(attempt, row["step"]) for attempt, row in every if "training/global_step" in row]

    def _gather(self) -> None:
        scene, user = self.scene, self.scene.user
        try:
            rayjob = user.run("get", "rayjob", self.name, "-n", NAMESPACE, "-o", "yaml")
        except KubeError as error:
            rayjob = f"# {error}\n"
        scene.keep(f"{self.name}.rayjob.yaml", rayjob)
        scene.keep(f"{self.name}.events.json", user.items("events", namespace=NAMESPACE))
        names = scene.objects(f"{PREFIX}/{self.name}/")
        scene.keep(f"{self.name}.s3.txt", "\n".join(names))
        for name in names:
            last = name.rpartition("/")[2]
            if (last in _KEPT_OBJECTS or last.startswith(_KEPT_PARTS)) and "/checkpoints/" not in name:
                below = name.removeprefix(f"{BUCKET}/{PREFIX}/{self.name}/")
                scene.keep(f"{self.name}.store/{below}", scene.files.cat(name))

    def _watch(self, what: str, *selector: str) -> subprocess.Popen[bytes]:
        command = [str(gotools.find("kubectl")), "get", what, *selector, "-n", NAMESPACE]
        command += ["--watch", "--output-watch-events", "-o", "json"]
        with open(self.kept(f"{what}.watch"), "ab") as out:
            return subprocess.Popen(command, env=self.scene.user.environment, stdout=out, stderr=subprocess.DEVNULL)

    def _overrides(self, names: Sequence[str]) -> list[Path]:
        return [*(OVERRIDES / name for name in ("common.yaml", *names)), self.scene.image]

    def _environment(self) -> dict[str, str]:
        """Return the user's environment, with the store's credentials, and helm where this machine has it."""
        tools = {gotools.CACHE_VARIABLE: str(gotools.cache_dir())}
        return {**self.scene.user.environment, **self.scene.store(), **tools, "COLUMNS": "160"}

    def _output(self, command: list[str], *, timeout_s: float) -> str:
        """Return a command's output, with an exit code that is not 0 as the last line."""
        environment = {**self._environment(), "PYTHON": os.environ.get("PYTHON", "python3")}
        done = ended(*command, env=environment, cwd=ROOT, timeout=timeout_s)
        return done.stdout + done.stderr + (f"exit {done.returncode}\n" if done.returncode else "")


def role_of(pod: Tree) -> str:
    """Return the role of a run's pod: head, worker, submitter or check."""
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def _each(flag: str, values: Sequence[object]) -> list[str]:
    return [word for value in values for word in (flag, str(value))]


def _processes(pod: Tree) -> set[int]:
    """Return the process ids of a pod, as its cgroups name them."""
    below = f"kubepods/**/pod{pod['metadata']['uid']}/**/cgroup.procs"
    files = [path for pattern in (below, f"pids/{below}") for path in CGROUPS.glob(pattern)]
    return {int(line) for path in files for line in path.read_text().split()}
