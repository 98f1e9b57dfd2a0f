"""Runs on a Ray cluster that others started: the driver on a head without CPUs, the ranks on other nodes, as in pods."""

import json
import secrets
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.compare import Places, differences
from tests.e2e_cpu import pods
from tests.e2e_cpu.runs import SPECS, run
from tests.ports import free_ports
from tests.runs.s3 import server as s3

from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import write_parquet
from opd.experiment import dump_spec, load_spec
from opd.runs.manifest import complete_steps
from opd.runs.metrics import read_metrics
from opd.store.local import LocalStore

TIMEOUT_S = 600.0
# As KubeRay and the charts set them.
POD = {
    "RAY_CLUSTER_NAME": "opd-x7k2p",
    "RAY_JOB_STOP_SIGNAL": "SIGINT",
    "RAY_JOB_STOP_WAIT_TIME_S": "120",
    "OPD_SAVE_SECONDS": "120",
    "OPD_STARTS_PER_CLUSTER": "2",
}


@pytest.fixture(autouse=True)
def namespaces():
    pods.require_namespaces()


def mount(folder: Path, name: str, *sets: str) -> Path:
    """The experiment as the chart's ConfigMap holds it, where every pod sees it; its store is outside the pods."""
    loaded = load_spec(str(SPECS / "opd.yaml"), env={}, sets=[f"store.url={folder}/store", *sets])
    path = folder / f"{name}.json"
    path.write_text(json.dumps(dump_spec(loaded.spec)))
    return path


def entrypoint(experiment: Path) -> list[str]:
    return ["python", "-m", "opd.pods.start", str(experiment)]


def steps_of(run: Path) -> list[dict[str, Any]]:
    rows = read_metrics([LocalStore(run)])
    return [dict(row) for row in rows if "training/global_step" in row]


def first_step(metrics: Path) -> int:
    """Return the first step of an attempt's rows; 0 before there is one."""
    text = metrics.read_text() if metrics.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()  # a row on its way may be there by half
    return next((step for line in lines if (step := json.loads(line).get("training/global_step"))), 0)


@pytest.mark.timeout(5000)
def test_an_evicted_pod_waits_for_the_save_and_a_stopped_job_resumes(tmp_path):
    (port,) = free_ports(1)
    long = mount(tmp_path, "long", "trainer.total_steps=200", "trainer.save_freq=150", f"trainer.master_port={port}")
    with pods.cluster(tmp_path, num_workers=1, shared=True, environment=POD) as cluster:
        run_dir = cluster.pods["head"].volume / "out" / "opd"
        cluster.submit(*entrypoint(long), job="first")

        def has_trained() -> bool:
            assert cluster.has_ended("first") is None, cluster.log("first")
            metrics = run_dir / "attempts" / "0001" / "metrics.jsonl"
            return metrics.exists() and len(metrics.read_text().splitlines()) > 2

        pods.wait_for(has_trained, TIMEOUT_S, "two steps", lambda: cluster.log("first"))
        socket.create_connection((pods.ADDRESS, port), timeout=5).close()  # trainer.master_port: where the ranks meet
        # The driver's node offers no CPU: nothing of the run but the driver may be there.
        processes = {name: cluster.exec(name, "ps", "axo", "args").stdout for name in ("head", "worker-0")}
        for actor in ("WorkerDict", "RolloutServer"):
            assert f"ray::{actor}" not in processes["head"], processes["head"]
            assert f"ray::{actor}" in processes["worker-0"], processes["worker-0"]

        hook = cluster.exec("worker-0", "python", "-m", "opd.pods.stop", str(long), timeout=TIMEOUT_S)
        assert (hook.returncode, "saved at step" in hook.stderr) == (0, True), hook.stderr + cluster.log("first")
        saved = int(hook.stderr.split("saved at step")[1].split()[0])
        assert (run_dir / "checkpoints" / f"global_step_{saved}" / "COMPLETE").exists()
        assert (tmp_path / "store" / "opd" / "checkpoints" / f"global_step_{saved}" / "COMPLETE").exists()

        handed_over = tmp_path / "store" / "opd" / "attempts" / "0001" / "ended.json"
        assert handed_over.exists(), "the next attempt need not wait for the lease of an attempt whose pods are gone"

        cluster.stop_job("first")
        assert cluster.wait("first", TIMEOUT_S) == "STOPPED"
        ended = json.loads(handed_over.read_text())
        assert ended["outcome"] == "stopped", ended
        last = steps_of(tmp_path / "store" / "opd")[-1]["training/global_step"]
        assert last == saved, "the trainer holds still after a save that a pod asked for"

        short = mount(tmp_path, "short", f"trainer.total_steps={last + 2}", "trainer.save_freq=150")
        cluster.submit(*entrypoint(short), job="second")
        assert cluster.wait("second", TIMEOUT_S) == "SUCCEEDED", cluster.log("second")
        assert f"resuming from step {last}" in cluster.log("second")
        assert "asked to save" not in cluster.log("second"), (
            "what an earlier trainer was asked is nobody's wish any more"
        )
        cluster.submit(*entrypoint(short), job="third")
        assert cluster.wait("third", TIMEOUT_S) == "FAILED"
        assert "start 3 in the Ray cluster opd-x7k2p, and 2 are allowed" in cluster.log("third")
    assert [row["training/global_step"] for row in steps_of(tmp_path / "store" / "opd")] == list(range(1, last + 3))


@pytest.mark.timeout(5000)
def test_a_worker_that_is_lost_or_goes_is_followed_in_its_cluster_and_a_lost_head_without_waiting_for_its_lease(
    tmp_path,
):
    long = mount(tmp_path, "long", "trainer.total_steps=400", "trainer.save_freq=1", "trainer.val_before_train=false")
    with pods.cluster(
        tmp_path, num_workers=1, shared=True, environment={**POD, "OPD_STARTS_PER_CLUSTER": "4"}
    ) as cluster:
        run_dir = cluster.pods["head"].volume / "out" / "opd"

        def until_saved_by(attempt: int) -> int:
            """The first step that the attempt has trained and saved."""
            metrics = run_dir / "attempts" / f"{attempt:04d}" / "metrics.jsonl"

            def is_saved() -> bool:
                assert cluster.has_ended("first") is None, cluster.log("first")
                step = first_step(metrics)
                return step > 0 and (run_dir / "checkpoints" / f"global_step_{step}" / "COMPLETE").exists()

            pods.wait_for(is_saved, TIMEOUT_S, f"a step of attempt {attempt}", lambda: cluster.log("first"))
            return first_step(metrics)

        cluster.submit(*entrypoint(long), job="first")
        until_saved_by(1)
        cluster.pods["worker-0"].delete()
        cluster.start_worker("worker-0")

        until_saved_by(2)
        assert "opd.launch: the run has lost" in cluster.log("first")
        assert "its node is gone" in cluster.log("first")
        hook = cluster.exec("worker-0", "sh", "-c", f"python -m opd.pods.stop {long}; ray stop", timeout=TIMEOUT_S)
        saved = int(hook.stderr.split("saved at step")[1].split()[0])
        cluster.pods["worker-0"].delete()
        cluster.start_worker("worker-0")

        assert until_saved_by(3) == saved + 1, "nothing is trained twice that was asked to be saved"
        assert cluster.log("first").count("starting again in this Ray cluster") == 2
        cluster.stop()
        last = steps_of(tmp_path / "store" / "opd")[-1]["training/global_step"]

        cluster.start(num_workers=1)
        short = mount(tmp_path, "short", f"trainer.total_steps={last + 2}", "trainer.val_before_train=false")
        cluster.submit(*entrypoint(short), job="second")
        assert cluster.wait("second", TIMEOUT_S) == "SUCCEEDED", cluster.log("second")
        assert "waiting for its lease" not in cluster.log("second")
        assert "Training Progress" not in cluster.log("second"), "a bar of verl's would share the lines of our steps"
    assert [row["training/global_step"] for row in steps_of(tmp_path / "store" / "opd")] == list(range(1, last + 3))


@pytest.mark.timeout(5000)
def test_nodes_that_lose_their_own_disks_resume_from_s3_bit_for_bit(tmp_path):
    """Model, teacher and data come from s3:// and everything goes there; head and one rank begin again with empty disks."""
    sets = ("trainer.total_steps=8", "trainer.save_freq=1", "checkpoint.keep_last=2", "trainer.val_before_train=false")
    folder = tmp_path / "pods"
    with s3.running_server(tmp_path / "s3") as port:
        bucket = tmp_path / "s3" / "data" / s3.BUCKET
        environment = {**POD, **s3.environment(port), "OPD_CACHE_DIR": str(folder / "work" / "cache")}
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        inputs = _upload_inputs(bucket / "inputs")
        url = f"s3://{s3.BUCKET}"
        folder.mkdir()
        experiment = mount(folder, "exp", *sets, "trainer.nnodes=2", f"store.url={url}/store", *inputs)
        stored = LocalStore(bucket / "store" / "opd")
        pods.resumed_without_two_disks(folder, entrypoint(experiment), environment, stored, step=2)
    kept = {f"global_step_{step}" for step in complete_steps([stored])}
    for name in ("head", "worker-0", "worker-1"):
        volume = folder / "pods" / name / "volume"
        left = {path.name for path in (volume / "out" / "opd" / "checkpoints").glob("global_step_*")}
        assert {"global_step_8"} <= left <= kept, f"retention on the disk of {name}"
        assert list((volume / "cache" / "fetched").glob("student-*/model.safetensors")), name
    whole = run(tmp_path / "whole", "opd", *sets, "trainer.gpus_per_node=2").must_be_clean()
    places = Places(local=LocalStore(whole.run_dir), store=LocalStore(tmp_path / "whole" / "out" / "store" / "opd"))
    found = Places(local=stored, store=stored)
    assert differences(places, found, num_starts=2, same_spec=False) == []


def _upload_inputs(target: Path) -> list[str]:
    """The bundled models and data as objects (the server keeps them as files); the keys of the spec that name them."""
    for name, model in (("student", STUDENT_DIR), ("teacher", TEACHER_DIR)):
        shutil.copytree(model, target / name)
    write_parquet(target, seed=3)
    base = f"s3://{s3.BUCKET}/{target.name}"
    return [
        f"model.path={base}/student",
        f"teacher.path={base}/teacher",
        f"data.train=[{base}/train.parquet]",
        f"data.val=[{base}/heldout.parquet]",
    ]
