"""Up and down: starts the cluster's process 1 in fresh namespaces, remembers what is needed to end it, and ends it."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.e2e.cluster import host, images, packages
from tests.e2e.cluster.inside import DEBIAN, GO, READY, USER_KUBECONFIG

import gotools

ROOT = Path(__file__).resolve().parents[3]
_STATE = "state.json"
Say = Callable[[str], None]


class ClusterError(RuntimeError):
    """Why the cluster cannot come up or be used; the text says what to do."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Facts that `down` needs: process 1 of the namespaces as this machine sees it, and the machine before."""

    pid: int
    started: str  # the kernel's start time of that process: another process may have the id by now
    baseline: dict[str, Any]


def folder() -> Path:
    """Return the folder of the running cluster's files: $OPD_CLUSTER_DIR, else below the user's cache."""
    given = os.environ.get("OPD_CLUSTER_DIR")
    return Path(given).resolve() if given else gotools.cache_dir().parent / "cluster"


@contextmanager
def held(by: str) -> Iterator[None]:
    """Hold the cluster's place while entered: no other process brings a cluster up or down in it.

    Raises:
        ClusterError: another process holds it; says which, and what it does.
    """
    path = folder().with_name(f"{folder().name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ClusterError(f"the cluster is held by {holder}: wait for its end, or end it (Ctrl-C) first") from None
        file.truncate(0)
        file.write(f"{by} (process {os.getpid()})")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def up(say: Say, *, archives: tuple[Path, ...] = (), timeout_s: float = 900) -> None:
    """Bring the cluster up; returns when every part answers.

    Raises:
        ClusterError: it is up already, something is missing, or a part does not come up (everything is ended then).
    """
    _check_machine()
    begin = time.monotonic()
    say("parts ...")
    for name in gotools.GROUPS["cluster"]:
        gotools.install(name)
    gotools.module("ray-operator")  # downloads what the namespaces have no network for
    debian = packages.unpacked()
    pause = images.pause_archive()
    place = folder()
    (place / "images").mkdir(parents=True)
    (place / DEBIAN).symlink_to(debian)
    for archive in (pause, *archives):
        (place / "images" / archive.name).symlink_to(archive)
    _start(place)
    _follow(place, say, timeout_s=timeout_s)
    say(f"the cluster is up after {time.monotonic() - begin:.0f} s: make cluster-shell, make cluster-down")


def down(say: Say) -> bool:
    """End the cluster and put the machine back, however far it had come; returns whether there was anything."""
    place = folder()
    if not place.exists():
        return False
    state = _state(place)
    if state is not None:
        _end(state)
        for change in host.restore(state.baseline):
            say(f"put back: {change}")
    shutil.rmtree(place)
    return True


def shell(command: list[str]) -> int:
    """A shell, or a command, in the cluster's namespaces as `opd-user`; returns its exit code.

    Raises:
        ClusterError: no cluster is up.
    """
    state = _state(folder())
    if state is None or not _is_alive(state):
        raise ClusterError("no cluster is up: make cluster")
    tools = {str(gotools.find(name).parent) for name in ("helm", "kubectl")}
    environment = {
        **os.environ,
        "KUBECONFIG": str(folder() / USER_KUBECONFIG),
        "PATH": ":".join([*sorted(tools), os.environ.get("PATH", packages.search_path())]),
        "NO_PROXY": "*",
    }
    enter = ["nsenter", "--target", str(state.pid), "--mount", "--net", "--pid", f"--wdns={ROOT}"]
    return subprocess.run([*enter, *(command or ["bash"])], env=environment, check=False).returncode


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise ClusterError("namespaces, mounts and cgroups need root: run make cluster as root")
    if lacking := packages.missing_programs():
        raise ClusterError("\n".join(lacking))
    if folder().exists():
        raise ClusterError(f"a cluster is up or was left half way ({folder()}): make cluster-down")
    if found := host.pod_cgroups():
        raise ClusterError(
            f"another kubelet's cgroups are here ({found[0]}): this cluster would remove them at its end"
        )


def _start(place: Path) -> None:
    """Start process 1, write down how to end it, then let it begin: without the word it ends by itself."""
    baseline = host.snapshot()
    path = os.pathsep.join([str(ROOT), str(ROOT / "tools"), str(ROOT / "src")])
    with open(place / "inside.log", "wb") as log:
        outer = subprocess.Popen(
            [*host.OWN_NAMESPACES, "--net", sys.executable, "-m", "tests.e2e.cluster.inside", str(place)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert outer.stdin is not None
    pid = _child_of(outer)
    state = State(pid=pid, started=_start_time(pid), baseline=baseline)
    (place / _STATE).write_text(json.dumps(asdict(state), indent=1))
    outer.stdin.write(GO.encode())
    outer.stdin.close()


def _child_of(outer: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = children.read_text().split() if outer.poll() is None else []
        if found:
            return int(found[0])
        if outer.returncode is not None:
            break
        time.sleep(0.02)
    outer.kill()
    raise ClusterError(f"unshare did not start the cluster's first process: see {folder() / 'inside.log'}")


def _follow(place: Path, say: Say, *, timeout_s: float) -> None:
    """Repeat the first process's lines until every part is up; on a failure end everything."""
    deadline, num_seen, log, state = time.monotonic() + timeout_s, 0, place / "inside.log", _state(place)
    while time.monotonic() < deadline:
        is_alive = state is not None and _is_alive(state)
        lines = log.read_text().splitlines()
        for line in lines[num_seen:]:
            if line == READY:
                return
            say(line)
        num_seen = len(lines)
        if not is_alive:
            break
        time.sleep(0.2)
    kept = gotools.cache_dir().parent / "cluster-logs"
    shutil.rmtree(kept, ignore_errors=True)
    if (place / "logs").is_dir():
        shutil.copytree(place / "logs", kept)
    last = log.read_text()[-1000:]
    down(say)
    raise ClusterError(f"the cluster is not up within {timeout_s:.0f} s:\n{last}logs: {kept}")


def _end(state: State) -> None:
    """End process 1, and with it everything in its namespaces."""
    with contextlib.suppress(ProcessLookupError):  # it may end between the look and the signal
        if _is_alive(state):
            os.kill(state.pid, signal.SIGKILL)
            while _is_alive(state):
                time.sleep(0.1)


def _state(place: Path) -> State | None:
    """None where nothing was started yet; a file cut short is like none, as the first process has not begun then."""
    try:
        return State(**json.loads((place / _STATE).read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _is_alive(state: State) -> bool:
    try:
        return _start_time(state.pid) == state.started
    except (FileNotFoundError, ProcessLookupError):
        return False


def _start_time(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
