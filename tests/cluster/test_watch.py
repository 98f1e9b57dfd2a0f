"""A run that has lost an actor or its Ray ends by itself, wherever it waits."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

_LATE = """
    import threading
    from opd.cluster import watch
    from opd.errors import PartLost

    begun, left, asked = threading.Event(), threading.Event(), []

    def find():
        asked.append(None)
        if len(asked) == 2:
            raise AttributeError("of a private interface")
        if len(asked) == 4:
            begun.set()
            left.wait()
        return {"id": "lost"} if len(asked) > 2 else {}

    def error(lines):
        if len(asked) == 3:
            raise ConnectionError("who would know more is gone")
        ends.append(lines)
        return PartLost(lines)

    ends = []
    with watch.Watch([watch.Look(find=find, patience_s=0, error=error)], poll_s=0.01):
        begun.wait()
        looking, = (thread for thread in threading.enumerate() if thread.name == "opd-watch")
    left.set()
    looking.join()
    print("went on", ends, flush=True)
"""


def test_a_look_that_fails_goes_on_and_one_that_answers_too_late_ends_nothing():
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_LATE)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "went on [['lost']]\n"), ended.stderr
    for reason in ("of a private interface", "who would know more is gone"):
        assert f"cannot ask Ray how the run is, trying again: {reason}" in ended.stderr


_PROGRAM = """
    import os, signal, sys, threading, time
    import ray
    from opd.errors import PartLost
    from opd.cluster.lost import looks, lost_parts
    from opd.compat.ray_start import patient_start
    from opd.cluster.watch import Watch

    where, end_s = sys.argv[1], float(sys.argv[2])
    with patient_start():
        ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)

    class Queue:
        def pid(self):
            return os.getpid()

        def hang(self):
            time.sleep(3600)

    kept, ended, dropped, lost = (ray.remote(num_cpus=0)(Queue).remote() for _ in range(4))
    store = ray._private.worker._global_node.all_processes["gcs_server"][0].process.pid
    pid = ray.get([one.pid.remote() for one in (kept, ended, dropped, lost)])[-1]
    ray.kill(ended)
    del dropped
    hang = threading.Event()
    try:
        with Watch(looks(None, patience_s=0.2)[:3], poll_s=0.1, end_s=end_s):
            print("nothing lost" if not hang.wait(1.0) and not lost_parts() else "?", flush=True)
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
    ],
)
def test_a_wait_for_what_is_lost_ends_with_its_name(where, end_s, lost, why):
    environment = {**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", textwrap.dedent(_PROGRAM), where, end_s]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, errors = process.communicate(timeout=280)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert out.startswith("nothing lost\n"), (out, errors)
    said = errors if where == "closing" else out
    assert f"the run has lost {lost}" in said, (out, errors)
    assert f"{why}. The next attempt resumes from the newest checkpoint" in said
    assert process.returncode == (1 if where == "closing" else 0)
