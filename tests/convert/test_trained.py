"""From the real trainer to a folder for plain transformers, each started as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.tensor  # allow-lists DTensor for weights_only
from tests.e2e_cpu.runs import run
from transformers import AutoModelForCausalLM, AutoTokenizer

from opd.data.toy import STUDENT_DIR

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]
TIMEOUT_S = 480.0


def _train(folder: Path, *sets: str) -> Path:
    """The checkpoint of a run's only step."""
    outcome = run(
        folder, "opd", "trainer.total_steps=1", "trainer.save_freq=1", "trainer.val_before_train=false", *sets
    )
    return outcome.must_be_clean().run_dir / "checkpoints" / "global_step_1"


def _start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def _check(model_dir: Path, shards: list[Path]) -> None:
    """The folder holds the shards' values, which are not the student's start, and answers through the chat template."""
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    states = [torch.load(path, weights_only=True) for path in shards]
    start = AutoModelForCausalLM.from_pretrained(STUDENT_DIR).state_dict()
    changed = False
    for name, value in model.state_dict().items():
        assert torch.equal(value, torch.cat([state[name]._local_tensor for state in states])), name
        changed |= not torch.equal(value, start[name])
    assert changed
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "12+34"}], add_generation_prompt=True)
    answer = model.generate(torch.tensor([prompt["input_ids"]]), max_new_tokens=4, do_sample=False)
    assert answer.shape[1] > len(prompt["input_ids"])


def test_a_trained_student_is_converted_by_the_launcher_and_by_the_command(tmp_path):
    step_dir = _train(tmp_path)
    shards = [step_dir / "actor" / "model_world_size_1_rank_0.pt"]

    spec = {
        "kind": "convert",
        "name": "to-hf",
        "convert": {"checkpoint": str(step_dir)},
        "output": {"root": "converted"},
    }
    (tmp_path / "convert.json").write_text(json.dumps(spec))
    _start(tmp_path, "opd.launch", "convert.json")
    model_dir = step_dir.with_name("global_step_1-huggingface")
    _check(model_dir, shards)
    record = json.loads((model_dir / "conversion.json").read_text())
    run_record = json.loads((step_dir.parent.parent / "run.json").read_text())
    assert record["base_model"] == "toy://student"
    assert (record["run_id"], record["step"], record["spec_hash"]) == ("opd", 1, run_record["spec_hash"])
    log = (tmp_path / "converted" / "to-hf" / "attempts" / "0001" / "driver.log").read_text()
    assert "tensors equal bit for bit" in log

    options = ("--target", "model", "--dtype", "bf16", "--base-model", "toy://student")
    done = _start(tmp_path, "opd.convert", f"{step_dir}/actor", *options)
    assert "tensors equal bit for bit" in done.stderr
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").dtype == torch.bfloat16


def test_a_student_trained_on_two_ranks_is_converted(tmp_path):
    step_dir = _train(tmp_path, "trainer.gpus_per_node=2")
    _start(tmp_path, "opd.convert", str(step_dir), "--target", "model")
    _check(tmp_path / "model", [step_dir / "actor" / f"model_world_size_2_rank_{rank}.pt" for rank in range(2)])
