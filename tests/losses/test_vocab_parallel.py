"""The divergence over ranks that share the vocabulary, on gloo (on a GPU: see `tests.losses.vocab_ranks`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.ports import free_ports

from opd.losses.divergence import DIVERGENCE_KINDS
from opd.losses.rows import row_statistics
from opd.losses.vocab_parallel import chunk_rows, vocab_shard

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(world: int) -> None:
    """`tests.losses.vocab_ranks` on as many processes; raises where one of them does."""
    [port] = free_ports(1)
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    shared |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.losses.vocab_ranks"],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        errors = [process.communicate(timeout=270)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * world, "\n".join(errors)


@pytest.mark.slow
def test_two_ranks_give_the_divergence_and_gradients_of_one():
    run_ranks(2)


@pytest.mark.slow
def test_three_ranks_give_the_divergence_and_gradients_of_one():
    run_ranks(3)


def test_shares_follow_each_other_and_differ_by_one_entry_at_most():
    shares = [vocab_shard(10, rank, 4) for rank in range(4)]
    assert [(s.start, s.stop) for s in shares] == [(0, 2), (2, 5), (5, 7), (7, 10)]
    with pytest.raises(ValueError, match="cannot share fewer entries"):
        vocab_shard(3, 0, 4)


def test_a_workspace_holds_eight_fp32_rows_a_token():
    assert chunk_rows(1.0, 2**20) == 2**30 // (8 * 4 * 2**20)
    assert chunk_rows(1e-9, 2**20) == 1


@pytest.mark.parametrize("kind", DIVERGENCE_KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_single_share_is_the_row_kernel(kind, temperature, scale):
    generator = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(6, 33, generator=generator, dtype=torch.float64) * scale for _ in range(2))
    ids, weights = torch.arange(6), torch.rand(6, generator=generator, dtype=torch.float64)
    options = {"beta": 0.4, "temperature": temperature, "gradient_scale": weights, "picked": ids}
    expected, gradient = row_statistics(student.clone(), teacher.clone(), kind, **options)
    found, sharded = row_statistics(student.clone(), teacher.clone(), kind, reduce=lambda values, op: None, **options)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(sharded, gradient, rtol=1e-11, atol=1e-13)
