"""A run that has lost an actor ends by itself, wherever it waits."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

_PROGRAM = """
    import os, signal, sys, threading
    import ray
    from opd.training.errors import PartLost
    from opd.training.loss_watch import LossWatch, lost_parts

    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)

    class Queue:
        def pid(self):
            return os.getpid()

    kept, ended, lost = (ray.remote(num_cpus=0)(Queue).remote() for _ in range(3))
    pid = ray.get([kept.pid.remote(), ended.pid.remote(), lost.pid.remote()])[-1]
    ray.kill(ended)
    hang = threading.Event()
    try:
        with LossWatch(poll_s=0.1, patience_s=0.2, end_s=float(sys.argv[1])):
            print("nothing lost" if not hang.wait(1.0) and not lost_parts() else "?", flush=True)
            os.kill(pid, signal.SIGKILL)
            try:
                hang.wait()  # as the queue's client waits for a peer that is gone
            finally:
                if sys.argv[1] != "60":
                    hang.wait()  # and its closing too
    except PartLost as error:
        print(error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end_s", ["60", "0.5"], ids=["it closes", "it does not close either"])
def test_a_wait_for_a_lost_actor_ends_with_its_name(end_s):
    environment = {**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", textwrap.dedent(_PROGRAM), end_s]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert out.startswith("nothing lost\n"), (out, errors)
    said = out if end_s == "60" else errors
    assert "the run has lost Queue at " in said
    assert "its process is gone. The next attempt resumes from the newest checkpoint" in said
    assert process.returncode == (0 if end_s == "60" else 1)
