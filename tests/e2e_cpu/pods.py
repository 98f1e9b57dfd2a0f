"""Ray nodes on this machine that see of it what pods see of their node: processes, host name, /tmp and volumes of their own.

Each node is a process namespace, a host name and a mount namespace. The run's working directory is one folder for all nodes (a
claim that all pods mount) or a folder for each (emptyDir). The nodes share the machine's network.
"""

import ctypes
import http.client
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cluster.probes import is_listening
from tests.ports import free_ports
from tests.processes import ended

from opd.runs.manifest import complete_steps, step_folder
from opd.store.local import LocalStore

ADDRESS = "127.0.0.1"
START_TIMEOUT_S = 600.0
_UNANSWERED = (OSError, ValueError, http.client.HTTPException)  # no answer, or one that was cut short
OBJECT_STORE_BYTES = 100_000_000
_BIN = Path(sys.executable).parent
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NAMESPACES = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "--uts",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)


def require_namespaces() -> None:
    """Skip the test where this user may not make namespaces (not root, or a container without the right to)."""
    tried = ended(*_NAMESPACES, "true")
    if tried.returncode:
        pytest.skip(f"needs mount, host name and process namespaces: {tried.stderr.strip()}")


def wait_for(is_there: Callable[[], bool], timeout_s: float, what: str, evidence: Callable[[], str] = str) -> None:
    """Look until it is there; the error shows the evidence."""
    deadline_s = time.monotonic() + timeout_s
    while not is_there():
        assert time.monotonic() < deadline_s, f"{what} did not come within {timeout_s:g} s:\n{evidence()[-6000:]}"
        time.sleep(0.2)


@dataclass(kw_only=True)
class Pod:
    """One running Ray node; `volume` is the folder that it has as its working directory, as this machine sees it."""

    name: str
    volume: Path
    process: subprocess.Popen[bytes]

    def delete(self) -> None:
        """All its processes at once, as when its node is lost."""
        self.process.send_signal(signal.SIGKILL)  # `unshare --kill-child` takes the namespace along
        self.process.wait(timeout=30)


@dataclass(kw_only=True)
class Cluster:
    """A head without CPUs and workers with one logical GPU each, started as KubeRay starts them.

    Args:
        folder: keeps volumes and logs; `folder/work` is the working directory in every pod.
        shared: one volume for all pods (a claim), else one each (emptyDir).
        environment: of every pod, over this process's own.
    """

    folder: Path
    shared: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gcs_port, self.dashboard_port = free_ports(2)
        self.work_dir.mkdir(parents=True, exist_ok=True)

    @property
    def work_dir(self) -> Path:
        return self.folder / "work"

    @property
    def address(self) -> str:
        return f"{ADDRESS}:{self.gcs_port}"

    @property
    def dashboard(self) -> str:
        return f"http://{ADDRESS}:{self.dashboard_port}"

    def start(self, *, num_workers: int) -> None:
        """Start head and workers and wait until all of them have joined."""
        client, agent = free_ports(2)
        self._start_pod(
            "head",
            f"--head --port={self.gcs_port} --dashboard-host={ADDRESS} --dashboard-port={self.dashboard_port} "
            f"--ray-client-server-port={client} --dashboard-agent-listen-port={agent} --num-cpus=0 --num-gpus=0",
        )
        self._wait("the head", lambda: self._num_nodes() == 1)
        # Ray's job server waits only 10 s for the agent that it starts drivers by.
        self._wait("the head's agent", lambda: is_listening(ADDRESS, agent))
        for index in range(num_workers):
            self.start_worker(f"worker-{index}")
        self._wait("all nodes", lambda: self._num_nodes() == num_workers + 1)

    def start_worker(self, name: str) -> None:
        (agent,) = free_ports(1)
        self._start_pod(
            name, f"--address={self.address} --dashboard-agent-listen-port={agent} --num-cpus=16 --num-gpus=1"
        )

    def stop(self) -> None:
        """Delete every pod; volumes stay."""
        for pod in self.pods.values():
            if pod.process.poll() is None:
                pod.delete()
        self.pods.clear()

    def exec(self, pod: str, *words: str, **options) -> subprocess.CompletedProcess[str]:
        """Run a command in a pod, in its working directory, as a preStop hook or `kubectl exec` does."""
        (inner,) = (
            Path(f"/proc/{self.pods[pod].process.pid}/task/{self.pods[pod].process.pid}/children").read_text().split()
        )
        enter = ["nsenter", "--target", inner, "--mount", "--uts", "--pid"]
        # nsenter's own --wd would name the folder as it is outside.
        enter += ["sh", "-c", 'cd "$0" && exec "$@"', str(self.work_dir)]
        return ended(*enter, *words, env=self._environment(), **options)

    def submit(self, *words: str, job: str) -> None:
        """Submit the job's entrypoint, as the submitter pod does."""
        self._ask("/api/jobs/", {"entrypoint": shlex.join(words), "submission_id": job})

    def log(self, job: str) -> str:
        return self._ask(f"/api/jobs/{job}/logs")["logs"]

    def stop_job(self, job: str) -> None:
        """Stop it as KubeRay does before it deletes a cluster."""
        self._ask(f"/api/jobs/{job}/stop", {})

    def has_ended(self, job: str) -> str | None:
        """Return how the job ended; None while it runs, or if Ray's server does not answer this time."""
        try:
            status = self._ask(f"/api/jobs/{job}")["status"]
        except _UNANSWERED as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise
            return None
        return status if status in ("SUCCEEDED", "FAILED", "STOPPED") else None

    def wait(self, job: str, timeout_s: float) -> str:
        """Return how the job ended; the error shows its log if it does not end."""
        found: list[str | None] = []

        def has_ended() -> bool:
            found.append(self.has_ended(job))
            return found[-1] is not None

        wait_for(has_ended, timeout_s, f"the end of {job}", lambda: self.log(job))
        return str(found[-1])

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ray's job server; its command line would take seconds of a core a question."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if token := self.environment.get("RAY_AUTH_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.dashboard + path, data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def _environment(self) -> dict[str, str]:
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
        # An earlier ray.init of this process may have left its own settings (RAY_AUTH_MODE=token where a token file is).
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return {
            **inherited,
            "RAY_AUTH_MODE": "disabled",
            **quiet,
            "PATH": path,
            "HOME": str(self.folder),
            **self.environment,
        }

    def _start_pod(self, name: str, options: str) -> None:
        own = self.folder / "pods" / name
        volume = self.folder / "volume" if self.shared else own / "volume"
        for needed in (own / "tmp-ray", volume):
            needed.mkdir(parents=True, exist_ok=True)
        script = "\n".join(
            [
                "set -eu",
                f"hostname {name}",
                "mkdir -p /tmp/ray",
                f"mount --bind {shlex.quote(str(own / 'tmp-ray'))} /tmp/ray",
                f"mount --bind {shlex.quote(str(volume))} {shlex.quote(str(self.work_dir))}",
                f"cd {shlex.quote(str(self.work_dir))}",
                f"exec ray start --block --disable-usage-stats --node-ip-address={ADDRESS} "
                f"--object-store-memory={OBJECT_STORE_BYTES} {options}",
            ]
        )
        with (own / "ray.log").open("ab") as log:
            process = subprocess.Popen(
                [*_NAMESPACES, "sh", "-c", script],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=_die_with_parent,
                env=self._environment(),
            )
        self.pods[name] = Pod(name=name, volume=volume, process=process)

    def _wait(self, what: str, is_there: Callable[[], bool]) -> None:
        def is_up() -> bool:
            gone = [pod.name for pod in self.pods.values() if pod.process.poll() is not None]
            assert not gone, f"{what} did not come up: {gone} ended\n{logs()}"
            return is_there()

        def logs() -> str:
            return "".join((self.folder / "pods" / name / "ray.log").read_text()[-3000:] for name in self.pods)

        wait_for(is_up, START_TIMEOUT_S, what, logs)

    def _num_nodes(self) -> int:
        """Return how many nodes have joined; 0 while the head does not answer."""
        try:
            return len(self._ask("/nodes?view=hostnamelist")["data"]["hostNameList"])
        except _UNANSWERED:
            return 0


def _die_with_parent() -> None:
    """In a pod's first process: a test that is killed leaves no pods."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def cluster(
    folder: Path, *, num_workers: int, shared: bool, environment: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """A cluster that is up; its pods are gone afterwards."""
    pods = Cluster(folder=folder, shared=shared, environment=environment or {})
    try:
        pods.start(num_workers=num_workers)
        yield pods
    finally:
        pods.stop()


def resumed_without_two_disks(
    folder: Path,
    words: Sequence[str],
    environment: Mapping[str, str],
    store: LocalStore,
    *,
    step: int,
    random_s: float = 0,
) -> int:
    """Kill two ranks with a disk each once a step is sealed; run again without the disks of the head and of one rank.

    Args:
        words: the job's command.
        store: the run's place in its bucket.
        random_s: so long after the step all pods are killed.

    Returns:
        The newest sealed step at the kill, from which the second job resumed.
    """
    with cluster(folder, num_workers=2, shared=False, environment=environment) as pods:
        pods.submit(*words, job="first")

        def is_sealed() -> bool:
            assert pods.has_ended("first") is None, pods.log("first")
            return step in complete_steps([store])

        wait_for(is_sealed, START_TIMEOUT_S, f"checkpoint {step}", lambda: pods.log("first"))
        time.sleep(random_s)
        pods.stop()
    newest = complete_steps([store])[-1]
    disks = [folder / "pods" / name / "volume" / "out" / store.root.name for name in ("head", "worker-0", "worker-1")]
    shards = [sorted(path.name for path in disk.glob(f"{step_folder(newest)}/actor/model_*")) for disk in disks]
    assert sorted(shards) == [[], ["model_world_size_2_rank_0.pt"], ["model_world_size_2_rank_1.pt"]]
    for name in ("head", "worker-1"):
        shutil.rmtree(folder / "pods" / name)
    with cluster(folder, num_workers=2, shared=False, environment=environment) as pods:
        pods.submit(*words, job="second")
        assert pods.wait("second", START_TIMEOUT_S) == "SUCCEEDED", pods.log("second")
        assert f"resuming from step {newest} (store)" in pods.log("second")
    return newest
