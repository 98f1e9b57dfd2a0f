"""Embedded Rays: late daemons are waited for, missing daemons are an error, and each Ray has a job id of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray._private import services

from opd.compat.ray_start import wait_longer

WAITS = ("RAY_gcs_server_port_wait_time_s", "RAY_gcs_rpc_server_connect_timeout_s")


@pytest.fixture(autouse=True)
def _the_waits_of_this_process_stay(monkeypatch):
    for name in WAITS:
        monkeypatch.setenv(name, "150")


def without_waits():
    return {name: value for name, value in os.environ.items() if name not in WAITS}


def looks(monkeypatch, *, num_failures):
    """Ray's own look for a node: it fails so many times; what was asked for is kept in the list."""
    asked = []

    def get_node(gcs_address, node_id):
        asked.append((gcs_address, node_id))
        if len(asked) <= num_failures:
            raise RuntimeError("not registered")
        return {"node_manager_port": 1}

    monkeypatch.setattr(services, "get_node", get_node)
    return asked


def test_a_node_that_registers_late_is_found_in_one_call(monkeypatch):
    asked = looks(monkeypatch, num_failures=3)
    wait_longer()
    assert services.get_node("head:6379", "n1") == {"node_manager_port": 1}
    assert asked == [("head:6379", "n1")] * 4


_TWO_RUNS = """
import os
import ray
from opd.compat.ray_start import draw_job_id, wait_longer

@ray.remote(num_cpus=0)
def job_id():
    return ray.get_runtime_context().get_job_id(), os.environ["RAY_gcs_rpc_server_connect_timeout_s"]

wait_longer(90)
draw_job_id()
for _ in range(2):
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    print("job", ray.get_runtime_context().get_job_id(), *ray.get(job_id.remote()))
    ray.shutdown()
"""


@pytest.fixture(scope="module")
def jobs():
    """Return of each of two runs the jobs of driver and worker, and the worker's limit of waiting for the control store."""
    words = [sys.executable, "-c", _TWO_RUNS]
    done = subprocess.run(words, env=without_waits(), capture_output=True, text=True, timeout=280, check=True)
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("job ")]


@pytest.mark.slow
def test_two_embedded_rays_have_jobs_of_different_ids(jobs):
    assert [driver == worker for driver, worker, _ in jobs] == [True, True]
    assert jobs[0] != jobs[1]


@pytest.mark.slow
def test_a_worker_waits_for_the_control_store_as_long_as_the_start_did(jobs):
    assert [wait_s for _, _, wait_s in jobs] == ["90", "90"]


def test_verl_still_names_its_sockets_by_the_job_s_id_alone():
    """If this fails, verl tells two runs of a host apart by itself: `draw_job_id` can go."""
    verl = importlib.util.find_spec("verl")
    assert verl is not None
    assert verl.origin is not None
    source = (Path(verl.origin).parent / "workers/rollout/vllm_rollout/vllm_rollout.py").read_text()
    assert (
        'job_id = ray.get_runtime_context().get_job_id()\n        self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{job_id}-'
        in source
    )


BARE = """
import psutil, ray
from opd.compat.ray_start import leave_out_daemons, wait_longer
wait_longer()
leave_out_daemons()
ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR")
print(ray.get(ray.remote(lambda: "answered").remote()))
print([child.cmdline() for child in psutil.Process().children()])
ray.shutdown()
"""


@pytest.mark.slow
def test_a_bare_node_works_without_autoscaler_and_dashboard():
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=300, check=False)
    assert "answered" in done.stdout, done.stdout + done.stderr[-3000:]
    assert "raylet" in done.stdout
    assert not [
        name for name in ("monitor.py'", "dashboard.py'") if f"/{name}" in done.stdout.replace("log_monitor.py", "")
    ]
