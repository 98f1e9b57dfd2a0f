"""A run that has lost a Ray node ends as that, wherever it waits; what ends with a process alone does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from opd.errors import EXIT_NODE_LOST, NodeLost

_PROGRAM = """
    import os, signal, sys, threading
    import ray
    from ray.cluster_utils import Cluster
    from opd.cluster.lost import looks, naming_lost_nodes
    from opd.cluster.watch import Watch
    from opd.compat.ray_start import patient_start
    from opd.errors import NodeLost

    where = sys.argv[1]
    small = {"object_store_memory": 80_000_000, "include_dashboard": False}
    # Ray looks every 3 s and calls a node dead after five looks; that is tested sooner here.
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 10_000}
    with patient_start():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick, **small})
        node = cluster.add_node(num_cpus=1, **small)
        ray.init(address=cluster.address, log_to_driver=False)

    class Queue:
        def pid(self):
            return os.getpid()

        def hang(self):
            threading.Event().wait()

    lost = ray.remote(num_cpus=1)(Queue).remote()
    pid, call = ray.get(lost.pid.remote()), lost.hang.remote()

    def lose():
        for process in ["raylet"] * (where != "process"):
            for info in node.all_processes[process]:
                os.kill(info.process.pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)

    try:
        if where == "lock":
            with Watch(looks(None, patience_s=3600)[1:3], poll_s=0.1):
                lose()
                threading.Event().wait()
        with naming_lost_nodes():
            lose()
            ray.get(call)
    except NodeLost as error:
        print("NodeLost:", error, flush=True)
    except ray.exceptions.RayActorError as error:
        print("RayActorError:", str(error).partition("\\n")[0], flush=True)
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "ends"),
    [
        ("lock", "NodeLost: the run has lost Queue at "),
        ("call", "NodeLost: the run has lost Queue at "),
        ("process", "RayActorError: "),
    ],
)
def test_a_lost_node_ends_a_wait_and_names_the_error_of_a_call(where, ends):
    environment = {**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    environment.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM), where],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=280)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    [line] = [line for line in out.splitlines() if line.startswith(("NodeLost: ", "RayActorError: "))]
    assert line.startswith(ends), (out, errors)  # Ray's own lines are there, too
    assert ("its node is gone" in line) == (where != "process")


@pytest.mark.parametrize(("address", "code"), [(None, 1), ("10.0.0.1:6379", EXIT_NODE_LOST)])
def test_only_in_a_cluster_another_start_may_follow(monkeypatch, address, code):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert NodeLost(["Queue at 10.0.0.2: its node is gone"]).exit_code == code
