"""A run that has lost an actor, a node or its Ray ends by itself with its name, wherever it waits."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from opd.errors import EXIT_NODE_LOST, NodeLost


def ran(program: str, *arguments: str) -> tuple[int, str, str]:
    """Run a program in a session of its own; return its exit code and its output."""
    environment = {**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    environment.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=280)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, errors


_LATE = """
    import threading
    from opd.cluster import lost
    from opd.errors import PartLost

    begun, left, asked, ends = threading.Event(), threading.Event(), [], []

    def find():
        asked.append(None)
        if len(asked) == 1:
            raise AttributeError("of a private interface")
        if len(asked) == 3:
            begun.set()
            left.wait()
        return {"id": "lost"} if len(asked) > 1 else {}

    def error(lines):
        if len(asked) == 2:
            raise ConnectionError("who would know more is gone")
        ends.append(lines)
        return PartLost(lines)

    with lost.watching([lost.Look(find=find, error=error)], poll_s=0.01):
        begun.wait()
        looking, = (thread for thread in threading.enumerate() if thread.name == "opd-watch")
    left.set()
    looking.join()
    print("went on", ends, flush=True)
"""


def test_a_look_that_fails_is_repeated_and_one_that_answers_too_late_ends_nothing():
    code, out, errors = ran(_LATE)
    assert (code, out) == (0, "went on [['lost']]\n"), errors
    for reason in ("of a private interface", "who would know more is gone"):
        assert f"cannot ask Ray how the run is, trying again: {reason}" in errors


_PART = """
    import os, signal, sys, threading, time
    from types import SimpleNamespace
    import ray
    from opd.errors import PartLost
    from opd.cluster.lost import looks, lost_parts, watching
    from opd.compat.ray_start import wait_longer
    from opd.experiment.pipeline import Sizes

    where, end_s = sys.argv[1], float(sys.argv[2])
    wait_longer()
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)

    class Queue:
        def pid(self):
            return os.getpid()

        def hang(self):
            time.sleep(3600)

    kept, ended, dropped, lost = (
        ray.remote(num_cpus=0)(Queue).options(name=name).remote()
        for name in ("vllm_server_1_0", "ended", "dropped", "vllm_server_0_0")
    )
    store = ray._private.worker._global_node.all_processes["gcs_server"][0].process.pid
    pid = ray.get([one.pid.remote() for one in (kept, ended, dropped, lost)])[-1]
    ray.kill(ended)
    del dropped
    hang = threading.Event()
    try:
        with watching(looks(Sizes("cpu", 1, 1), patience_s=0.2), poll_s=0.1, end_s=end_s):
            print("nothing lost" if not hang.wait(1.0) and not lost_parts() else "?", flush=True)
            if where == "engine":  # the server of a dead engine answers; the other one is busy
                ray.get(lost.__ray_call__.remote(lambda server: setattr(server, "engine", SimpleNamespace(errored=True))))
            else:
                os.kill(store if where == "store" else pid, signal.SIGKILL)
            try:
                # As the queue's client waits for a peer that is gone, or as the driver waits for a rank that waits for it.
                hang.wait() if where == "lock" else ray.get(kept.hang.remote())
            finally:
                if where == "closing":
                    hang.wait()
    except PartLost as error:
        print(error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "end_s", "lost", "why"),
    [
        ("lock", "60", "Queue at ", "its process is gone"),
        ("ray.get", "60", "Queue at ", "its process is gone"),
        ("closing", "0.5", "Queue at ", "its process is gone"),
        ("store", "60", "Ray's gcs_server (process ", "ended by SIGKILL"),
        ("engine", "60", "the engine of vllm_server_0_0", "its process is gone"),
    ],
)
def test_a_wait_for_a_lost_part_ends_with_its_name(where, end_s, lost, why):
    code, out, errors = ran(_PART, where, end_s)
    assert out.startswith("nothing lost\n"), (out, errors)
    said = errors if where == "closing" else out
    assert f"the run has lost {lost}" in said, (out, errors)
    assert f"{why}. The next attempt resumes from the newest checkpoint" in said
    assert code == (1 if where == "closing" else 0)


@pytest.mark.parametrize(("address", "code"), [(None, 1), ("10.0.0.1:6379", EXIT_NODE_LOST)])
def test_only_in_a_cluster_another_start_may_follow(monkeypatch, address, code):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert NodeLost(["Queue at 10.0.0.2: its node is gone"]).exit_code == code
