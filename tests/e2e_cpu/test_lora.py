"""A LoRA student end to end: served, killed, resumed to the same bits, converted to a plain model."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tests.e2e_cpu.runs import TIMEOUT_S, Outcome, kill_and_resume, must_end_alike, run, weights
from tests.processes import output
from transformers import AutoModelForCausalLM

from opd.data.toy import STUDENT_DIR

_STEPS = 6
_LORA = ("model.lora.rank=4", "model.lora.alpha=8", "actor.learning_rate=3e-3")
_SETS = (*_LORA, f"trainer.total_steps={_STEPS}", "trainer.save_freq=2", "rollout.logprobs_every=1")


def _folder(outcome: Outcome, step: int = _STEPS) -> Path:
    return outcome.run_dir / "checkpoints" / f"global_step_{step}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Outcome:
    return run(tmp_path_factory.mktemp("whole"), "opd", *_SETS).must_be_clean()


def test_only_adapters_are_trained_and_the_run_converts_to_a_plain_model(tmp_path, whole):
    compared = [row["training/rollout_probs_diff_max"] for row in whole.steps]
    assert max(compared) < 1e-4, "in every step the answers are those of the model that is trained"
    start = AutoModelForCausalLM.from_pretrained(STUDENT_DIR).state_dict()
    expected = weights(whole, _STEPS)
    for name, value in expected.items():
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        if ".lora_" not in name:
            assert torch.equal(value, start[plain]), name
    optimizer = torch.load(_folder(whole) / "actor" / "optim_world_size_1_rank_0.pt", weights_only=False)
    assert len(optimizer["state"]) == sum(".lora_" in name for name in expected), "moments of the adapters only"

    output(
        sys.executable, "-m", "opd.convert", _folder(whole), "--dtype", "checkpoint", cwd=tmp_path, timeout=TIMEOUT_S
    )
    model_dir = _folder(whole).with_name(f"global_step_{_STEPS}-huggingface")
    assert json.loads((model_dir / "conversion.json").read_text())["verification"]["num_tensors"] == len(start)
    converted = AutoModelForCausalLM.from_pretrained(model_dir).state_dict()
    assert set(converted) == set(start)
    for name, value in converted.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        if (base := expected.get(f"{layer}.base_layer.weight")) is None:
            assert torch.equal(value, start[name]), name
            continue
        up, down = (expected[f"{layer}.lora_{part}.default.weight"].double() for part in "BA")
        torch.testing.assert_close(value.double(), base.double() + 2 * up @ down, rtol=1e-5, atol=1e-6, msg=name)
        assert not torch.equal(value, start[name]), name


def test_killed_and_resumed_it_ends_in_the_uninterrupted_runs_adapters(tmp_path, whole):
    must_end_alike(kill_and_resume(tmp_path, "opd", *_SETS, behind=2), whole, _STEPS)
