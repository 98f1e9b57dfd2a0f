"""The entrypoint of the Ray job: bounded starts, signs of life, the trainer's own exit code."""

import errno
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from unittest.mock import Mock

import pytest

from opd.pods import start, stop
from opd.pods.stop import Experiment, read_experiment
from opd.store.local import LocalStore


def experiment(tmp_path):
    return Experiment(run_id="r", run_dir=tmp_path / "outputs/r", store_url=str(tmp_path / "store"))


def test_starts_are_counted_for_each_ray_cluster(tmp_path):
    assert [start.claim_start(LocalStore(tmp_path), cluster) for cluster in "aabac"] == [1, 2, 1, 3, 1]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_the_trainers(tmp_path, code):
    trainer = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    assert start.watch(trainer, tmp_path) == code


def test_the_mounted_experiment_is_read_as_the_chart_writes_it(tmp_path):
    path = tmp_path / "exp.json"
    path.write_text(json.dumps({"name": "my-run", "output": {"root": "outputs/"}, "store": {"url": "s3://b/x"}}))
    here = read_experiment(path)
    assert (here.run_id, str(here.run_dir), here.store_url) == ("my-run", "outputs/my-run", "s3://b/x")
    path.write_text(json.dumps({"name": "my-run", "output": {"root": "o"}}))
    assert read_experiment(path).store_url == "o/store"


@pytest.fixture
def counted(monkeypatch):
    """Starts are counted, as KubeRay and the chart have it."""
    monkeypatch.setenv(start.CLUSTER_VARIABLE, "opd-run-x")
    monkeypatch.setenv(start.STARTS_VARIABLE, "3")


def test_a_head_that_stays_allows_another_start(tmp_path, counted, monkeypatch):
    here = experiment(tmp_path)
    assert start.stays(here, [])
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "worker")
        stop.ask(here.run_dir, hold_s=1)
    assert start.stays(here, []), "a worker that ends takes no head along"
    stop.ask(here.run_dir, hold_s=1)
    assert not start.stays(here, []), "it has asked itself"
    stop.forget(here.run_dir)
    assert not start.stays(here, [signal.SIGINT])


@pytest.mark.parametrize("unset", [start.CLUSTER_VARIABLE, start.STARTS_VARIABLE])
def test_where_starts_are_not_counted_there_is_one(tmp_path, counted, monkeypatch, unset):
    monkeypatch.delenv(unset)
    assert not start.stays(experiment(tmp_path), [])


def launched(tmp_path, **environment):
    """Start a run with a key that no experiment has."""
    (tmp_path / "exp.json").write_text(
        json.dumps({"name": "r", "kind": "opd", "output": {"root": "outputs"}, "sead": 1})
    )
    command = [sys.executable, "-m", "opd.pods.start", "exp.json"]
    return subprocess.run(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip


def test_one_start_too_many_in_a_ray_cluster_is_refused(tmp_path):
    for _ in range(2):
        start.claim_start(LocalStore(tmp_path / "outputs/store/r"), "cluster-1")
    done = launched(tmp_path, RAY_CLUSTER_NAME="cluster-1", OPD_STARTS_PER_CLUSTER="2")
    assert done.returncode == start.EXIT_FAILED
    assert "start 3 in the Ray cluster cluster-1, and 2 are allowed" in done.stderr
    assert "sead" not in done.stderr


def test_an_image_refuses_a_chart_of_another_version_in_one_line_and_ends_no_run(tmp_path):
    done = launched(tmp_path, OPD_CHART_VERSION="7.1.3", RAY_CLUSTER_NAME="cluster-1")
    [line] = done.stderr.splitlines()
    own = ".".join(version("opd").split(".")[:2])
    assert f"the chart is of version 7.1.3 and the image holds opd {version('opd')}" in line
    assert f"Install the chart of version {own}, or name an image of 7.1 in cluster.image.ref" in line
    assert done.returncode == start.EXIT_MISFIT
    assert not (tmp_path / "outputs/store/r/fatal.json").exists()


@pytest.mark.parametrize(("chart", "fits"), [("", True), ("0.3.0-rc.1+abc", True), ("0.2.9", False), ("0.30.0", False)])
def test_a_chart_fits_an_image_of_the_same_major_and_minor(chart, fits):
    assert bool(start.misfit(chart, "0.3.2")) is not fits


TRAINER = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.3)
    os.write(1, b"saved\\n")  # the signal may come within print's own flush, which takes no second print
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
print("ready", flush=True)
while True:  # one long sleep would hear a signal that comes just before it only when it is over
    time.sleep(0.05)
"""
LAUNCHER = """
import signal, subprocess, sys
from pathlib import Path
from opd.pods import start
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: None)  # as `start.main` has it
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
sys.exit(start.watch(child, Path(sys.argv[2])))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_job_is_left_to_the_trainer(tmp_path, number):
    """Ray signals every process of a job: this program waits for the trainer's save."""
    command = [sys.executable, "-c", LAUNCHER, TRAINER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("saved\n", 7)


def test_a_disk_that_is_away_for_a_moment_ends_neither_the_watch_nor_the_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stop, "LISTEN_INTERVAL_S", 0.05)
    trainer = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(7)"], stdin=subprocess.PIPE
    )
    real, looks = stop.sign_of_life, []

    def read_only(run_dir):
        looks.append(run_dir)
        if len(looks) < 3:
            raise OSError(errno.EROFS, "Read-only file system")
        real(run_dir)
        trainer.stdin.close()

    monkeypatch.setattr(stop, "sign_of_life", read_only)
    assert start.watch(trainer, tmp_path) == 7
    assert stop.is_listening(tmp_path)
    assert "the sign of life is left out: [Errno 30] Read-only file system" in capsys.readouterr().err
    stop.ask(tmp_path, hold_s=1)
    monkeypatch.setattr("pathlib.Path.unlink", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    monkeypatch.setattr("pathlib.Path.read_text", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    stop.forget(tmp_path)
    stop.stop_listening(tmp_path)
    assert stop.requests(tmp_path) == []
