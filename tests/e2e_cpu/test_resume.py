"""A killed run goes on where its last complete checkpoint stands, to the same weights, bit for bit."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
import torch
from tests.e2e_cpu import begun_run
from tests.e2e_cpu.runs import TIMEOUT_S, Outcome, finish, kill_all, run, start

from opd.runs.resume import complete_steps
from opd.store.local import LocalStore

_STEPS = 8
_SETS = (f"trainer.total_steps={_STEPS}", "trainer.save_freq=2", "data.max_train_samples=48", "trainer.total_epochs=9")


def _weights(outcome: Outcome) -> dict[str, torch.Tensor]:
    path = outcome.run_dir / "checkpoints" / f"global_step_{_STEPS}" / "actor" / "model_world_size_1_rank_0.pt"
    state = torch.load(path, weights_only=False)
    return {name: getattr(value, "_local_tensor", value) for name, value in state.items()}


def test_kill_9_and_resume_ends_in_the_uninterrupted_runs_weights_bit_for_bit(tmp_path):
    # The original restarts its epochs at 0 and its file logger wipes the history (defect 14).
    whole = run(tmp_path / "whole", "opd", *_SETS).must_be_clean()

    folder = tmp_path / "killed"
    process = start(folder, "opd", *_SETS)
    sealed = folder / "out" / "opd" / "checkpoints" / "global_step_2" / "COMPLETE"
    deadline = time.monotonic() + 200
    while not sealed.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sealed.exists(), (folder / "run.log").read_text()[-4000:]
    kill_all(process.pid)
    process.wait(timeout=30)
    newest = complete_steps([LocalStore(folder / "out" / "opd")])[-1]  # 2, or later on a machine that stalled this test
    assert newest < _STEPS

    resumed = run(folder, "opd", *_SETS).must_be_clean()
    assert f"resuming from step {newest}" in resumed.output, "it goes on from the newest sealed step"
    assert [row["training/global_step"] for row in resumed.steps] == list(range(1, _STEPS + 1))
    assert [row["training/epoch"] for row in resumed.steps] == [row["training/epoch"] for row in whole.steps]
    for mine, theirs in zip(resumed.steps, whole.steps, strict=True):
        assert (mine["opd/loss"], mine["opd/num_tokens"]) == (theirs["opd/loss"], theirs["opd/num_tokens"])
    expected = _weights(whole)
    for name, value in _weights(resumed).items():
        assert torch.equal(value, expected[name]), name


def test_a_run_that_is_asked_to_end_saves_its_step_and_loses_none(tmp_path):
    sets = ("trainer.total_steps=40", "trainer.save_freq=30")
    process = start(tmp_path, "opd", *sets)
    metrics = tmp_path / "out" / "opd" / "attempts" / "0001" / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and len(metrics.read_text().splitlines()) > 2:  # the validation and two steps
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process, tmp_path, "opd")
    assert stopped.returncode == 130, stopped.output[-4000:]
    last = stopped.steps[-1]["training/global_step"]
    assert 2 <= last < 40
    assert (stopped.run_dir / "checkpoints" / f"global_step_{last}" / "COMPLETE").exists()
    assert f"saved step {last}" in stopped.output

    resumed = run(tmp_path, "opd", *sets, f"trainer.total_steps={last + 1}").must_be_clean()
    assert f"resuming from step {last}" in resumed.output
    assert [row["training/global_step"] for row in resumed.steps] == list(range(1, last + 2))


@pytest.mark.parametrize(
    "lost_disk", [False, pytest.param(True, marks=pytest.mark.matrix)], ids=["same-disk", "new-disk"]
)
@pytest.mark.parametrize(
    "archive", sorted((Path(__file__).parent / "begun").glob("*.tar.xz")), ids=lambda path: path.name
)
def test_a_run_that_an_older_version_began_resumes_and_goes_on_as_it_would_have(archive, lost_disk, tmp_path):
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    if lost_disk:
        shutil.rmtree(tmp_path / "out")
    ended = subprocess.run(
        begun_run.command(), cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    assert f"resuming from step {begun_run.SEALED_STEP}" in ended.stdout + ended.stderr
    expected = json.loads((tmp_path / "expected.json").read_text())
    found = begun_run.rows(tmp_path)
    assert [row["training/global_step"] for row in found] == [row["training/global_step"] for row in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert (
            mine["opd/num_tokens"] == theirs["opd/num_tokens"]
        )  # of other processors' last bits no sampled token may hang
        assert mine["opd/loss"] == pytest.approx(theirs["opd/loss"], rel=1e-3)
        assert mine["opd/grad_norm"] == pytest.approx(theirs["opd/grad_norm"], rel=1e-2)
