"""The parts' processes: an unexpected end is reported, and none outlives the process that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.cluster.processes import PartError, Processes, minimal_environment
from tests.ports import free_ports
from tests.processes import is_running

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def processes(tmp_path):
    running = Processes(tmp_path / "logs", environment=minimal_environment(tmp_path))
    yield running
    running.stop_all()


def test_a_part_that_ends_while_it_is_waited_for_is_named_with_the_end_of_its_log(processes):
    processes.start("broken", ["sh", "-c", "echo cannot bind; exit 3"])
    with pytest.raises(PartError, match=r"broken ended with 3; its log ends:\ncannot bind"):
        processes.wait_for("broken", lambda: False)


def test_a_part_dies_with_a_starter_that_is_killed(tmp_path):
    script = (
        "from pathlib import Path; import time\n"
        "from tests.e2e.cluster.processes import Processes, minimal_environment\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "running = Processes(folder / 'logs', environment=minimal_environment(folder))\n"
        "running.start('part', ['sleep', '600'])\n"
        "print(running.pid('part'), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.kill(starter.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline, "the part outlives its starter"
        time.sleep(0.05)


def test_free_ports_are_distinct_and_below_those_of_clients():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    lowest_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ports) < lowest_of_clients
