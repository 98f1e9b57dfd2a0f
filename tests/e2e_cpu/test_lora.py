"""A LoRA student end to end: served, killed, resumed to the same bits, converted to a plain model; and the other kinds that train."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.e2e_cpu.runs import TIMEOUT_S, Outcome, kill_and_resume, must_end_alike, run, weights
from transformers import AutoModelForCausalLM

from opd.data.toy import STUDENT_DIR
from opd_envs.travel.toy import STUDENT as AGENT_STUDENT
from opd_envs.travel.toy import model_folder

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

    command = [sys.executable, "-m", "opd.convert", str(_folder(whole)), "--dtype", "checkpoint"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
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


# Short conversations: the tasks that the bundled teacher was taught.
_AGENT = (
    "agent.max_assistant_turns=3", "data.max_prompt_length=128", "data.max_response_length=192", "data.max_val_samples=8",
    "data.train_batch_size=8", "trainer.val_before_train=false",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["grpo", "sft", "opd-agent"])
def test_a_lora_run_of_another_kind_moves_adapters_only(tmp_path, kind):
    sets = {
        "grpo": ("recipe=grpo-native", "grpo.kl_loss_coef=0.1", "actor.ppo_mini_batch_size=16"),  # one update a step
        "sft": (),
        "opd-agent": (*_AGENT, "rollout.logprobs_every=1"),
    }[kind]
    outcome = run(tmp_path, kind, *_LORA, *sets, "trainer.total_steps=2", "trainer.save_freq=2").must_be_clean()
    folder = model_folder(AGENT_STUDENT) if kind == "opd-agent" else STUDENT_DIR
    start = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    moved = set()
    for name, value in weights(outcome, 2).items():
        if ".lora_B." in name and value.abs().max() > 0:
            moved.add(name)
        if ".lora_" not in name:
            assert torch.equal(value, start[name.removeprefix("base_model.model.").replace(".base_layer", "")]), name
    assert moved
    if kind == "opd-agent":
        compared = [row["training/rollout_probs_diff_max"] for row in outcome.steps]
        assert max(compared) < 1e-4, "each turn is said by the model that is trained"
        assert any(value > 0 for key, value in outcome.steps[-1].items() if key.startswith("agent/tool/"))
    if kind == "grpo":
        penalty = [row["actor/kl_loss"] for row in outcome.steps]
        assert penalty[0] == pytest.approx(0, abs=1e-6), "the reference is the model without its adapters"
        assert max(penalty) > 1e-6
