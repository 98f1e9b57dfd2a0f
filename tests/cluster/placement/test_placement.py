"""Placement on a real Ray: every part of a run has its place with the derived CPUs; with one less the wait ends by name.

The nodes' CPUs and GPUs are logical. The trainer and verl place the parts (placement/program.py); only the bodies of ranks,
workers and servers are empty.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 900.0
NUM_WORKERS = 8  # a run's own default

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(TIMEOUT_S + 60)]


@pytest.mark.parametrize(("num_nodes", "gpus", "cpus"), [(1, 1, 3), (1, 8, 24), (2, 8, 24)])
def test_everything_is_placed_with_the_derived_cpus_and_with_one_less_a_node_the_wait_ends(num_nodes, gpus, cpus):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_AUTH_MODE": "disabled", "PYTHONPATH": "src:."}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.placement.program", str(num_nodes), str(gpus)],
        env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    assert len(lines) == 1, (out[-3000:], errors[-6000:])
    found = json.loads(lines[0])
    assert "no node had room within 3 s for placement group global_pool" in found["unplaced"]
    for error in (found["refused"], found["unplaced"]):
        assert f"0 of {num_nodes} nodes with {gpus} GPU{'s' * (gpus > 1)} and {cpus} CPUs for its ranks" in error
        assert f"{gpus} GPUs, {cpus - 1} CPUs" in error
    assert (found["cpus"], found["ranks"], found["others"]) == (cpus, num_nodes * gpus, NUM_WORKERS + num_nodes * gpus)
    assert found["free"] == 0, "no CPU more"
