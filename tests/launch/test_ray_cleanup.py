"""An embedded Ray goes with the run: its daemons and workers end on Ctrl-C, and when the driver is killed outright."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from tests.processes import marked

DRIVER = """
import os, sys, time
from opd.cluster.supervise import supervised

def run():
    import ray
    from opd.compat.ray_start import wait_longer
    wait_longer()
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)

    @ray.remote
    class Busy:
        def ready(self):
            return os.getpid()

        def work(self):
            time.sleep(600)

    busy = Busy.remote()
    ray.get(busy.ready.remote())
    call = busy.work.remote()
    print(os.getpid(), flush=True)
    ray.get(call)
    return 0

sys.exit(supervised(run, grace_s=20))
"""


def living(mark):
    """Names of the processes that the run started and of those that these started."""
    names = []
    for process in marked(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names


@pytest.mark.slow
@pytest.mark.parametrize("way", ["interrupted", "driver killed"])
def test_no_ray_process_outlives_the_run(way):
    mark = f"{os.getpid()}-{way}"
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | {"OPD_TEST_MARK": mark}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    driver = int(process.stdout.readline())
    assert {"raylet", "gcs_server"} <= set(living(mark))
    if way == "interrupted":
        process.send_signal(signal.SIGINT)
    else:
        os.kill(driver, signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode == (130 if way == "interrupted" else 1)
    deadline = time.monotonic() + 60  # the kernel may still be taking the last ones down
    while living(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert living(mark) == []
