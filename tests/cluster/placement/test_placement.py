"""With the CPUs that are derived every part of a run finds its place on a real Ray; with one less the wait ends and says so.

The nodes' CPUs and GPUs are logical, so 32 ranks need no GPU. What is placed, and by which options, is the trainer's own
and verl's (placement/program.py); only the bodies of ranks, workers and servers are empty.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 900.0
SMALL = ("1x1",)
BIG = ("1x8", "2x8", "4x8")  # thirty to a hundred processes
# Nodes x GPUs: CPUs of a node = 3 a rank.
CPUS = {"1x1": 3, "1x8": 24, "2x8": 24, "4x8": 24}
NUM_WORKERS = 8  # a run's own default

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(TIMEOUT_S + 60)]


def play(*sizes: str) -> dict[str, dict[str, Any]]:
    """What the program found, by size."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_AUTH_MODE": "disabled", "PYTHONPATH": "src:."}
    command = [sys.executable, "-m", "tests.cluster.placement.program", *sizes]
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [item["size"] for item in found] == list(sizes), (out[-3000:], errors[-6000:])
    return {item["size"]: item for item in found}


@pytest.fixture(scope="module")
def small():
    return play(*SMALL)


def must_be_placed(found: dict[str, Any], size: str) -> None:
    num_nodes, gpus = map(int, size.split("x"))
    assert found["cpus"] == CPUS[size]
    assert (found["ranks"], found["others"]) == (num_nodes * gpus, NUM_WORKERS + num_nodes * gpus)
    assert found["unplaced"] == []
    assert found["free"] == 0, "no CPU more"


def must_end_with_one_cpu_less(found: dict[str, Any], size: str) -> None:
    num_nodes, gpus = map(int, size.split("x"))
    needed = f"{gpus} GPU{'s' * (gpus > 1)} and {CPUS[size]} CPUs for its ranks"
    assert f"0 of {num_nodes} nodes with {needed}" in found["refused"], "before anything is placed"
    assert f"{gpus} GPUs, {CPUS[size] - 1} CPUs" in found["refused"]
    assert "no node had room within 3 s for placement group global_pool" in found["group"]
    assert f"({gpus} x CPU 3 and GPU 1)" in found["group"]
    assert f"a node needs {needed}" in found["group"]
    assert f"{gpus} GPUs, {CPUS[size] - 1} CPUs" in found["group"]
    assert found["group_s"] < 120


@pytest.mark.parametrize("size", SMALL)
def test_everything_is_placed_with_the_cpus_that_are_derived_and_none_is_left(small, size):
    must_be_placed(small[size], size)


@pytest.mark.parametrize("size", SMALL)
def test_with_one_cpu_less_a_node_the_ranks_wait_ends_with_the_number_and_the_node(small, size):
    must_end_with_one_cpu_less(small[size], size)


@pytest.mark.parametrize("size", BIG)
def test_nodes_of_eight_gpus_are_placed_too_and_their_wait_ends(size):
    [found] = play(size).values()
    must_be_placed(found, size)
    must_end_with_one_cpu_less(found, size)
