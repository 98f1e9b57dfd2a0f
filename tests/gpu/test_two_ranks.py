"""Two GPUs and NCCL: the losses and the worker give what one rank gives."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu import needs

pytestmark = pytest.mark.timeout(900)
needs.devices(2, "two ranks over NCCL need two CUDA devices")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "tests.losses.vocab_ranks", "--device", "cuda"],
        ["-m", "tests.gpu.two_ranks"],
    ],
    ids=["losses", "worker"],
)
def test_two_ranks_give_the_gradients_of_one(command):
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
