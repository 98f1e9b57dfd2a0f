"""A distillation from a teacher that vLLM serves, next to the same one from the teacher in the ranks."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.cluster.probes import answers
from tests.e2e_cpu.pods import wait_for
from tests.e2e_cpu.runs import finish, kill_all, run, start
from tests.ports import free_ports

from opd.data.toy import TEACHER_DIR

TOP_K, NUM_STEPS = 16, 4
STEPS = (f"trainer.total_steps={NUM_STEPS}", "trainer.save_freq=-1", "trainer.test_freq=-1")


@contextmanager
def served(port: int, log: Path) -> Iterator[None]:
    """Serve the toy teacher until the block ends."""
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(TEACHER_DIR), "--served-model-name", "toy",
        "--max-logprobs", str(TOP_K), "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager",
        "--block-size", "16",
    ]  # fmt: skip
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        )
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"), 300, "the teacher", log.read_text)
        yield
    finally:
        kill_all(process.pid)
        process.wait()


def by_server(port: int, *sets: str) -> tuple[str, ...]:
    of_teacher = ("teacher.path=toy", f"teacher.url=http://127.0.0.1:{port}/v1", f"teacher.top_k={TOP_K}")
    return (*of_teacher, "teacher.dtype=fp32", *STEPS, *sets)


def test_each_step_has_the_divergence_of_the_same_teacher_in_the_ranks(tmp_path):
    [port] = free_ports(1)
    with served(port, tmp_path / "server.log"):
        from_server = run(tmp_path / "served", "opd", *by_server(port))
    in_ranks = run(tmp_path / "local", "opd", *STEPS, "opd.loss_type=topk_reverse_kl", f"opd.top_k={TOP_K}")
    found, expected = ([row["opd/divergence"] for row in it.must_be_clean().steps] for it in (from_server, in_ranks))
    assert len(found) == NUM_STEPS
    assert found == pytest.approx(expected, rel=5e-3)  # vLLM's softmax has the padding rows of the head, too


def test_a_server_that_is_killed_and_started_again_is_waited_for(tmp_path):
    [port] = free_ports(1)
    with served(port, tmp_path / "server.log"):
        began = start(tmp_path / "run", "opd", *by_server(port, "trainer.total_steps=8"))
        rows = lambda: any(path.stat().st_size for path in (tmp_path / "run").rglob("metrics.jsonl"))  # noqa: E731
        wait_for(rows, 300, "a row")
    time.sleep(3.0)
    with served(port, tmp_path / "server.log"):
        outcome = finish(began, tmp_path / "run", "opd")
    assert outcome.returncode == 0, outcome.output[-6000:]
    assert "the served teacher does not answer" in outcome.output
    assert len(outcome.steps) == 8
