"""The entrypoint of the Ray job: `python -m opd.pods.start EXP.json` starts the trainer and watches over its time.

KubeRay resubmits a job whose head was lost. After the loss of another node this program starts the trainer again in the same
Ray cluster. Starts are counted in the store and bounded for each Ray cluster.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from opd.errors import EXIT_NODE_LOST, AlreadyExists, NodeLost, StoreError
from opd.pods import stop
from opd.pods.stop import Experiment, read_experiment
from opd.runs.attempts import STARTS_FOLDER
from opd.runs.origin import version_of
from opd.store.access import apply_experiment
from opd.store.base import Store, json_bytes
from opd.store.remote import open_store

CLUSTER_VARIABLE = "RAY_CLUSTER_NAME"  # KubeRay sets it
STARTS_VARIABLE = "OPD_STARTS_PER_CLUSTER"
CHART_VARIABLE = "OPD_CHART_VERSION"
EXIT_FAILED = 1
EXIT_MISFIT = 2


def claim_start(store: Store, cluster: str) -> int:
    """Count this start, create-only, so that two at once get two numbers; return its number within the Ray cluster."""
    # The store takes equal bytes for a retry of one write: the token makes each start's bytes unique.
    record, number = json_bytes({"time_s": time.time(), "token": uuid.uuid4().hex}), 1
    while True:
        try:
            store.create(f"{STARTS_FOLDER}/{cluster}/{number:04d}.json", record)
            return number
        except AlreadyExists:
            number += 1


def misfit(chart: str, image: str) -> str:
    """Return why a chart of one version cannot start an image of another; empty where major and minor are the same."""
    of_chart, of_image = (".".join(version.split(".")[:2]) for version in (chart, image))
    if not chart or of_chart == of_image:
        return ""
    return (
        f"the chart is of version {chart} and the image holds opd {image}. Major and minor must be the same. "
        f"Install the chart of version {of_image}, or name an image of {of_chart} in cluster.image.ref"
    )


def watch(child: subprocess.Popen[bytes], run_dir: Path) -> int:
    """Wait for the trainer, and give signs of life; return its exit code."""
    while True:
        try:
            stop.sign_of_life(run_dir)
        except OSError as error:  # a disk that takes nothing for a moment (read-only, full, stale)
            _say(f"the sign of life is left out: {error}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=stop.LISTEN_INTERVAL_S)


def main(path: str) -> int:
    """Start the trainer of the mounted experiment, again after a lost node; return its exit code."""
    experiment = read_experiment(path)
    apply_experiment(experiment.tree, is_final=True)
    if why := misfit(os.environ.get(CHART_VARIABLE, ""), version_of("opd")):
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
    return all(request.pod != socket.gethostname() for request in stop.requests(experiment.run_dir))


def _start(path: str, experiment: Experiment, signals: Sequence[int]) -> int:
    """Start the trainer once, unless a signal came or this Ray cluster has had its starts; return its exit code."""
    if cluster := os.environ.get(CLUSTER_VARIABLE):
        try:
            number = claim_start(open_store(experiment.store_url).child(experiment.run_id), cluster)
        except StoreError as error:
            _say(f"the store cannot be used: {error}")
            return EXIT_FAILED
        most = int(os.environ.get(STARTS_VARIABLE, number))
        if number > most:
            allowed = f"{most} are allowed (cluster.retries.startsPerCluster)"
            _say(f"start {number} in the Ray cluster {cluster}, and {allowed}")
            return EXIT_FAILED
    stop.forget(experiment.run_dir)
    if signals:
        return 128 + signals[0]
    child = subprocess.Popen([sys.executable, "-m", "opd.launch", path, "--grace-s", f"{stop.save_seconds():g}"])
    code = watch(child, experiment.run_dir)
    stop.stop_listening(experiment.run_dir)
    return code if code >= 0 else 128 - code


def _say(text: str) -> None:
    print(f"opd.pods.start: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
