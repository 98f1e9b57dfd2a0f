"""A node whose daemons come up late is waited for; one that never comes is an error; each embedded Ray has a job id of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray._private import services

from opd.compat.ray_start import own_job_id, patient_start

WAIT = "RAY_gcs_server_port_wait_time_s"


@pytest.fixture(autouse=True)
def _nobody_set_the_wait(monkeypatch):
    monkeypatch.delenv(WAIT, raising=False)


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
    with patient_start():
        assert services.get_node("head:6379", "n1") == {"node_manager_port": 1}
    assert asked == [("head:6379", "n1")] * 4


def test_a_node_that_never_registers_is_ray_s_own_error(monkeypatch):
    looks(monkeypatch, num_failures=10**6)
    with patient_start(timeout_s=0.3), pytest.raises(RuntimeError, match="not registered"):
        services.get_node("head:6379", "n1")


def test_ray_is_as_it_was_afterwards(monkeypatch):
    looks(monkeypatch, num_failures=0)
    before = services.get_node
    with patient_start(timeout_s=90):
        assert os.environ[WAIT] == "90"
    assert services.get_node is before
    assert WAIT not in os.environ


def test_a_wait_that_the_user_set_stays(monkeypatch):
    looks(monkeypatch, num_failures=0)
    monkeypatch.setenv(WAIT, "7")
    with patient_start():
        assert os.environ[WAIT] == "7"
    assert os.environ[WAIT] == "7"


_TWO_RUNS = """
import ray
from opd.compat.ray_start import own_job_id, patient_start

@ray.remote(num_cpus=0)
def job_id():
    return ray.get_runtime_context().get_job_id()

for _ in range(2):
    with patient_start(), own_job_id():
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    print("job", ray.get_runtime_context().get_job_id(), ray.get(job_id.remote()))
    ray.shutdown()
"""


@pytest.mark.slow
def test_two_embedded_rays_have_jobs_of_different_ids():
    words = [sys.executable, "-c", _TWO_RUNS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=True)
    jobs = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("job ")]
    assert [driver == worker for driver, worker in jobs] == [True, True]
    assert jobs[0] != jobs[1]


def test_a_job_s_id_is_ray_s_own_again_afterwards():
    from ray._private import state

    before = state.next_job_id
    with own_job_id():
        assert state.next_job_id is not before
    assert state.next_job_id is before


def test_verl_still_names_its_sockets_by_the_job_s_id_alone():
    """If this fails, verl tells two runs of a host apart by itself: `own_job_id` can go."""
    verl = importlib.util.find_spec("verl")
    assert verl is not None
    assert verl.origin is not None
    source = (Path(verl.origin).parent / "workers/rollout/vllm_rollout/vllm_rollout.py").read_text()
    assert (
        'job_id = ray.get_runtime_context().get_job_id()\n        self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{job_id}-'
        in source
    )
