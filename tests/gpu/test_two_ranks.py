"""Two GPUs and NCCL: the worker gives what one rank gives."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu import needs

pytestmark = pytest.mark.timeout(900)
needs.devices(2, "two ranks over NCCL need two CUDA devices")

ROOT = Path(__file__).resolve().parents[2]


def test_two_ranks_give_the_gradients_of_one():
    command = [sys.executable, "-m", "tests.gpu.two_ranks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
