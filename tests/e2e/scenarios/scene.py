"""What a scenario acts on: the cluster as its user and its administrator see it, the store, and a place for evidence."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import s3fs
from tests.e2e.cluster.kube import Kube, Tree
from tests.e2e.cluster.services import BUCKET, S3_SECRET
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.common import KILLED
from tests.e2e.scenarios.evidence import Evidence

ROOT = Path(__file__).resolve().parents[3]
CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "e2e"  # store.url of overrides/common.yaml


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where one scenario plays.

    Attributes:
        name: the scenario's.
        user: the namespaced `opd-user`, who installs, looks and deletes.
        admin: may do what a node or an operator of the cluster does (evict, preempt).
        evidence: gets what was seen.
        image: a values file with the image's reference.
        pids: file of the cluster's parts and their process ids.
    """

    name: str
    user: Kube
    admin: Kube
    evidence: Evidence
    image: Path
    pids: Path

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"{datetime.datetime.now():%H:%M:%S}  {self.name}: {text}", flush=True)

    def store(self) -> dict[str, str]:
        """The variables of the store's Secret, which the runs use too."""
        data = self.user.get("secret", S3_SECRET, namespace=NAMESPACE)["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def files(self) -> s3fs.S3FileSystem:
        """A client of the store, past every proxy."""
        store = self.store()
        return s3fs.S3FileSystem(
            key=store["AWS_ACCESS_KEY_ID"],
            secret=store["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=store["AWS_ENDPOINT_URL"],
            use_listings_cache=False,
        )

    def objects(self, prefix: str = "") -> list[str]:
        """Names of the bucket's objects below a prefix, in order."""
        return sorted(self.files().find(f"{BUCKET}/{prefix}"))

    def begin_empty(self) -> None:
        """Forget the runs of scenarios before this one: a name that the store or a claim knows would be resumed."""
        self.user.run("delete", "persistentvolumeclaims", "-n", NAMESPACE, "-l", "opd/run-id", timeout_s=120)
        files = self.files()
        if files.exists(f"{BUCKET}/{PREFIX}"):
            files.rm(f"{BUCKET}/{PREFIX}", recursive=True)

    def kill_part(self, name: str) -> None:
        """SIGKILL to a part of the cluster; returns once it runs again under another process id."""
        pid = self._pids()[name]
        self.say(f"kill {name}")
        os.kill(pid, signal.SIGKILL)
        killed = {"part": name, "pid": pid, "time": time.time()}
        self.admin.until(f"{name} is started again", lambda: self._pids()[name] != pid, timeout_s=30)
        self.evidence.append(KILLED, json.dumps({**killed, "next_pid": self._pids()[name]}) + "\n")

    def kill_pod(self, pod: Tree) -> None:
        """SIGKILL to every process of a pod at once, as its node's power cut would: no hook runs, nobody is told."""
        pids = _processes(pod)
        self.say(f"kill the {len(pids)} processes of {pod['metadata']['name']}")
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees another end, and tells of it
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it ended with another
                    os.kill(pid, number)
        record = {"pod": pod["metadata"]["name"], "num_processes": len(pids), "time": time.time()}
        self.evidence.append(KILLED, json.dumps(record) + "\n")

    def _pids(self) -> dict[str, Any]:
        return json.loads(self.pids.read_text())


def _processes(pod: Tree) -> set[int]:
    """Process ids of a pod, as its cgroups name them."""
    uid = pod["metadata"]["uid"]
    files = [
        path for top in ("pids/kubepods", "kubepods") for path in CGROUPS.glob(f"{top}/**/pod{uid}/**/cgroup.procs")
    ]
    return {int(line) for path in files for line in path.read_text().split()}
