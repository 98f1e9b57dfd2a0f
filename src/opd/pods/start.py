"""The entrypoint of the Ray job: `python -m opd.pods.start EXP.json` starts the trainer and watches over its time.

KubeRay resubmits a job whose head was lost, in HTTPMode without bound. After the loss of another node this program starts
the trainer again in the same Ray cluster. Starts are counted in the store and bounded for each Ray cluster. Before a
deadline of the RayJob the trainer is asked to save; after the deadline it is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from opd.errors import EXIT_NODE_LOST, AlreadyExists, NodeLost, StoreError
from opd.pods import stop
from opd.pods.stop import Experiment, read_experiment
from opd.store.access import apply_experiment
from opd.store.base import Store, json_bytes
from opd.store.opening import open_store

STARTS = "starts"
CLUSTER_VARIABLE = "RAY_CLUSTER_NAME"  # KubeRay sets it
STARTS_VARIABLE = "OPD_STARTS_PER_CLUSTER"
CHART_VARIABLE = "OPD_CHART_VERSION"
ACTIVE_VARIABLE = "OPD_ACTIVE_DEADLINE_SECONDS"
PRE_RUNNING_VARIABLE = "OPD_PRE_RUNNING_DEADLINE_SECONDS"
EXIT_TOO_MANY_STARTS = 1
EXIT_MISFIT = 2
# KubeRay looks at a deadline every few seconds; it would retry a trainer that ended before that look.
DEADLINE_MARGIN_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of the trainer: its number within the Ray cluster, and the start of that cluster's first head container."""

    number: int
    head_started_at_s: float


def claim_start(store: Store, cluster: str, *, head_started_at_s: float) -> Start:
    """Count this start, create-only, so that two at once get two numbers."""
    prefix = f"{STARTS}/{cluster}"
    # The store takes equal bytes for a retry of one write: the token makes each start's bytes unique.
    record = json_bytes({"head_started_at_s": head_started_at_s, "token": uuid.uuid4().hex})
    number = 1
    while True:
        try:
            store.create(f"{prefix}/{number:04d}.json", record)
            break
        except AlreadyExists:
            number += 1
    first: Mapping[str, Any] = store.get_json(f"{prefix}/0001.json") or {}
    return Start(number=number, head_started_at_s=first.get("head_started_at_s", head_started_at_s))


def misfit(chart: str, image: str) -> str:
    """Return why a chart of one version cannot start an image of another; empty where major and minor are the same."""
    if not chart or chart.split(".")[:2] == image.split(".")[:2]:
        return ""
    return (
        f"the chart is of version {chart} and the image holds opd {image}: major and minor must be the same; "
        f"install the chart of version {'.'.join(image.split('.')[:2])}, or name an image of "
        f"{'.'.join(chart.split('.')[:2])} in cluster.image.ref"
    )


def deadlines(start: Start, environment: Mapping[str, str], save_s: float) -> tuple[float | None, float | None]:
    """Return the Unix times at which the trainer is asked to save, and at which KubeRay has certainly ended the run.

    KubeRay counts activeDeadlineSeconds from the RayJob's startTime, which a pod cannot read and each new Ray cluster
    resets. The cluster's first head started at most preRunningDeadlineSeconds later. After a failure KubeRay leaves the
    job running until its clean-up: the trainer would hold its GPUs for nothing.
    """
    if ACTIVE_VARIABLE not in environment:
        return None, None
    deadline_s = start.head_started_at_s + float(environment[ACTIVE_VARIABLE])
    return deadline_s - float(environment[PRE_RUNNING_VARIABLE]) - save_s, deadline_s + DEADLINE_MARGIN_S


def head_started_at_s() -> float:
    """Return when this container's process 1 began, Unix seconds."""
    import psutil

    return float(psutil.Process(1).create_time())


def watch(
    child: subprocess.Popen[bytes],
    experiment: Experiment,
    ask_at_s: float | None,
    save_s: float,
    end_at_s: float | None = None,
) -> int:
    """Wait for the trainer; give signs of life, ask it to save before the deadline, and end it after the deadline."""
    while True:
        with _surviving("the sign of life"):
            stop.sign_of_life(experiment.run_dir)
        if ask_at_s is not None and time.time() >= ask_at_s:
            _say("the deadline is near: asking for a save; the run ends with it")
            with _surviving("the request to save"):
                stop.ask(experiment.run_dir, reason="the deadline is near", hold_s=2 * save_s)
                ask_at_s = None
        if end_at_s is not None and time.time() >= end_at_s:
            _say("the deadline has passed: ending the trainer")
            child.terminate()
            end_at_s = None
        try:
            return child.wait(timeout=stop.LISTEN_INTERVAL_S)
        except subprocess.TimeoutExpired:
            continue


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the trainer's exit code."""
    parser = argparse.ArgumentParser(prog="python -m opd.pods.start", description=__doc__.splitlines()[0])
    parser.add_argument("experiment", help="the mounted experiment (.json)")
    path = parser.parse_args(argv).experiment
    experiment = read_experiment(path)
    apply_experiment(experiment.tree, is_final=True)
    if why := misfit(os.environ.get(CHART_VARIABLE, ""), version("opd")):
        _say(why)
        return EXIT_MISFIT
    # Ray stops a job by signalling every process of it: the trainer handles the signal, this program waits.
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    while (code := _start(path, experiment, signals)) == EXIT_NODE_LOST and stays(experiment, signals):
        _say("a node of the run is lost and the head is not: starting again in this Ray cluster")
    return NodeLost.exit_code if code == EXIT_NODE_LOST else code


def stays(experiment: Experiment, signals: Sequence[int]) -> bool:
    """Return True if another start may follow here: starts are counted, and this pod is not about to end."""
    if signals or not {CLUSTER_VARIABLE, STARTS_VARIABLE} <= os.environ.keys():
        return False
    try:
        return not stop.has_asked(experiment.run_dir, socket.gethostname())
    except (OSError, ValueError) as error:
        _say(f"the requests to save cannot be read: {error}")
        return False


def _start(path: str, experiment: Experiment, signals: Sequence[int]) -> int:
    """Start the trainer once, unless a signal came or this Ray cluster has had its starts; return its exit code."""
    save_s = stop.save_seconds()
    ask_at_s = end_at_s = None
    if cluster := os.environ.get(CLUSTER_VARIABLE):
        try:
            store = open_store(experiment.store_url).child(experiment.run_id)
            start = claim_start(store, cluster, head_started_at_s=head_started_at_s())
        except StoreError as error:
            _say(f"the store cannot be used: {error}")
            return 1
        most = int(os.environ.get(STARTS_VARIABLE, start.number))
        if start.number > most:
            allowed = f"{most} are allowed (cluster.retries.startsPerCluster)"
            _say(f"start {start.number} in the Ray cluster {cluster}, and {allowed}")
            return EXIT_TOO_MANY_STARTS
        ask_at_s, end_at_s = deadlines(start, os.environ, save_s)
    with _surviving("forgetting old requests"):
        stop.forget(experiment.run_dir)
    if signals:
        return 128 + signals[0]
    child = subprocess.Popen(
        [sys.executable, "-m", "opd.launch", path, "--grace-s", f"{save_s:g}"], preexec_fn=_default_signals
    )
    try:
        code = watch(child, experiment, ask_at_s, save_s, end_at_s)
    finally:
        with _surviving("the end of listening"):
            stop.stop_listening(experiment.run_dir)
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _surviving(what: str) -> Iterator[None]:
    """Survive a disk that takes nothing for a moment (read-only, full, stale)."""
    try:
        yield
    except OSError as error:
        _say(f"{what} is left out: {error}")


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def _say(text: str) -> None:
    print(f"opd.pods.start: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
