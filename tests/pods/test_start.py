"""The entrypoint of the Ray job: bounded starts, a request in time before a deadline, the trainer's own exit code."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import pytest

from opd.pods import start, stop
from opd.pods.stop import Experiment, read_experiment
from opd.store.local import LocalStore


def experiment(tmp_path):
    return Experiment(run_id="r", run_dir=tmp_path / "outputs/r", store_url=str(tmp_path / "store"))


def sleeper(seconds=0.0, code=0):
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds}); raise SystemExit({code})"])


def until_told(code=0):
    """A trainer that ends when its standard input does."""
    program = f"import sys; sys.stdin.read(); raise SystemExit({code})"
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)


def test_starts_are_counted_for_each_ray_cluster(tmp_path):
    store = LocalStore(tmp_path)
    numbers = [start.claim_start(store, cluster, head_started_at_s=1.0).number for cluster in "aabac"]
    assert numbers == [1, 2, 1, 3, 1]


def test_a_recreated_head_counts_its_deadline_from_the_cluster_s_first_one(tmp_path):
    store = LocalStore(tmp_path)
    start.claim_start(store, "a", head_started_at_s=1000.0)
    assert start.claim_start(store, "a", head_started_at_s=5000.0).head_started_at_s == 1000.0
    assert start.claim_start(store, "b", head_started_at_s=5000.0).head_started_at_s == 5000.0


def test_the_trainer_is_asked_before_kuberay_may_end_the_run_and_ended_after_it_certainly_has():
    # The RayJob began at 400 to 1000, up to 600 s before its first head: KubeRay ends it at 9400 to 10000.
    environment = {"OPD_ACTIVE_DEADLINE_SECONDS": "9000", "OPD_PRE_RUNNING_DEADLINE_SECONDS": "600"}
    first = start.Start(number=1, head_started_at_s=1000.0)
    assert start.deadlines(first, environment, save_s=300) == (9400 - 300, 10000 + start.DEADLINE_MARGIN_S)
    assert start.deadlines(first, {}, save_s=300) == (None, None)


def test_a_trainer_that_runs_on_behind_the_deadline_is_asked_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(stop, "LISTEN_INTERVAL_S", 0.1)
    child = sleeper(seconds=60)
    assert start.watch(child, experiment(tmp_path), None, save_s=1, end_at_s=time.time() + 0.2) == -signal.SIGTERM


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_the_trainer_s(tmp_path, code):
    assert start.watch(sleeper(code=code), experiment(tmp_path), None, save_s=1) == code


def test_a_request_is_made_once_when_the_deadline_is_near(tmp_path, monkeypatch):
    monkeypatch.setattr(stop, "LISTEN_INTERVAL_S", 0.1)
    here, trainer, real, looks = experiment(tmp_path), until_told(), stop.sign_of_life, []

    def sign_of_life(run_dir):
        real(run_dir)
        if stop.pending(run_dir):
            looks.append(run_dir)
        if len(looks) == 3:
            trainer.stdin.close()

    monkeypatch.setattr(stop, "sign_of_life", sign_of_life)
    start.watch(trainer, here, time.time() + 0.2, save_s=150, end_at_s=time.time() + 120)
    [request] = stop.pending(here.run_dir)
    assert request.reason == "the deadline is near"
    assert request.hold_s == 300  # beyond the deadline: the run ends as it was saved


def test_the_mounted_experiment_is_read_as_the_chart_writes_it(tmp_path):
    path = tmp_path / "exp.json"
    path.write_text(json.dumps({"name": "my-run", "output": {"root": "outputs/"}, "store": {"url": "s3://b/x"}}))
    here = read_experiment(path)
    assert (here.run_id, str(here.run_dir), here.store_url) == ("my-run", "outputs/my-run", "s3://b/x")
    path.write_text(json.dumps({"name": "my-run", "output": {"root": "o"}}))
    assert read_experiment(path).store_url == "o/store"


def launched(tmp_path, tree, **environment):
    (tmp_path / "exp.json").write_text(json.dumps(tree))
    command = [sys.executable, "-m", "opd.pods.start", "exp.json"]
    return subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip


@pytest.fixture
def counted(monkeypatch):
    """Starts are counted, as KubeRay and the chart have it."""
    monkeypatch.setenv(start.CLUSTER_VARIABLE, "opd-run-x")
    monkeypatch.setenv(start.STARTS_VARIABLE, "3")


def test_a_head_that_stays_is_there_for_another_start(tmp_path, counted, monkeypatch):
    here = experiment(tmp_path)
    assert start.stays(here, [])
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "worker")
        stop.ask(here.run_dir, reason="its pod is being deleted", hold_s=1)
    assert start.stays(here, []), "a worker that ends takes no head along"
    stop.ask(here.run_dir, reason="its pod is being deleted", hold_s=1)
    assert not start.stays(here, []), "it has asked itself"
    stop.forget(here.run_dir)
    assert not start.stays(here, [signal.SIGINT])


@pytest.mark.parametrize("unset", [start.CLUSTER_VARIABLE, start.STARTS_VARIABLE])
def test_where_starts_are_not_counted_there_is_one(tmp_path, counted, monkeypatch, unset):
    monkeypatch.delenv(unset)
    assert not start.stays(experiment(tmp_path), [])


def test_requests_that_cannot_be_read_leave_the_next_start_to_kuberay(tmp_path, counted, capsys):
    here = experiment(tmp_path)
    request = stop.ask(here.run_dir, reason="its pod is being deleted", hold_s=1)
    (here.run_dir / stop.FOLDER / f"{request.id}.request").write_text("{")
    assert not start.stays(here, [])
    assert "cannot be read" in capsys.readouterr().err


BAD = {"name": "r", "kind": "opd", "output": {"root": "outputs"}, "sead": 1}


@pytest.mark.slow
def test_the_launcher_s_verdict_on_a_bad_spec_comes_through(tmp_path):
    process = launched(tmp_path, BAD, RAY_CLUSTER_NAME="cluster-1", OPD_STARTS_PER_CLUSTER="3")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "sead" in err
    assert (tmp_path / "outputs/store/r/starts/cluster-1/0001.json").is_file()
    assert not stop.is_listening(tmp_path / "outputs/r")


def test_one_start_too_many_in_a_ray_cluster_is_refused(tmp_path):
    store = LocalStore(tmp_path / "outputs/store/r")
    for _ in range(2):
        start.claim_start(store, "cluster-1", head_started_at_s=1.0)
    process = launched(tmp_path, BAD, RAY_CLUSTER_NAME="cluster-1", OPD_STARTS_PER_CLUSTER="2")
    _, err = process.communicate(timeout=60)
    assert process.returncode == start.EXIT_TOO_MANY_STARTS
    assert "start 3 in the Ray cluster cluster-1, and 2 are allowed" in err
    assert "sead" not in err


def test_an_image_refuses_a_chart_of_another_version_in_one_line_and_ends_no_run(tmp_path):
    process = launched(tmp_path, BAD, OPD_CHART_VERSION="7.1.3", RAY_CLUSTER_NAME="cluster-1")
    _, err = process.communicate(timeout=60)
    [line] = err.splitlines()
    own = ".".join(version("opd").split(".")[:2])
    assert f"the chart is of version 7.1.3 and the image holds opd {version('opd')}" in line
    assert f"install the chart of version {own}, or name an image of 7.1 in cluster.image.ref" in line
    assert process.returncode == start.EXIT_MISFIT
    assert not (tmp_path / "outputs/store/r/fatal.json").exists()


@pytest.mark.parametrize(("chart", "fits"), [("", True), ("0.3.0-rc.1+abc", True), ("0.2.9", False), ("0.30.0", False)])
def test_a_chart_fits_an_image_of_the_same_major_and_minor(chart, fits):
    assert bool(start.misfit(chart, "0.3.2")) is not fits


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_job_is_left_to_the_trainer(tmp_path, number):
    """Ray signals every process of a job: this one must wait for the trainer's save, not end before it."""
    code = (
        "import signal, sys, time\n"
        "from opd.pods import start\n"
        "from opd.pods.stop import Experiment\n"
        "from pathlib import Path\n"
        "import subprocess\n"
        "for n in (signal.SIGTERM, signal.SIGINT): signal.signal(n, signal.SIG_IGN)\n"
        "trainer = 'import os, signal, sys, time\\n"
        # os.write: the signal may come within print's own flush, which takes no second print. One long sleep would hear
        # a signal that comes just before it only when it is over.
        'def save(*a):\\n time.sleep(0.3); os.write(1, b"saved\\\\n"); sys.exit(7)\\n'
        "signal.signal(signal.SIGTERM, save); signal.signal(signal.SIGINT, save)\\n"
        'print("ready", flush=True)\\nwhile True: time.sleep(0.05)\'\n'
        "child = subprocess.Popen([sys.executable, '-c', trainer], preexec_fn=start._default_signals)\n"
        f"sys.exit(start.watch(child, Experiment(run_id='r', run_dir=Path({str(tmp_path)!r}), store_url='s'), None, 1))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("saved\n", 7)


@pytest.mark.parametrize("call", ["sign_of_life", "ask"])
def test_a_disk_that_is_read_only_for_a_moment_does_not_end_the_watch_over_a_trainer_that_runs(
    tmp_path, monkeypatch, capsys, call
):
    monkeypatch.setattr(stop, "LISTEN_INTERVAL_S", 0.05)
    here, real, failed, trainer = experiment(tmp_path), getattr(stop, call), [], until_told(code=7)

    def read_only(*args, **options):
        if len(failed) < 2:
            failed.append(call)
            raise OSError(errno.EROFS, "Read-only file system")
        done = real(*args, **options)
        if stop.pending(here.run_dir):  # both calls have gone well
            trainer.stdin.close()
        return done

    monkeypatch.setattr(stop, call, read_only)
    assert start.watch(trainer, here, time.time(), save_s=150) == 7
    assert stop.is_listening(here.run_dir)
    [request] = stop.pending(here.run_dir)
    assert request.reason == "the deadline is near"
    assert "is left out: [Errno 30] Read-only file system" in capsys.readouterr().err
