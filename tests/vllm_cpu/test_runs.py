"""Whole runs that sample with vLLM: its weights are the actor's in every step, and what becomes of a run whose engine is lost."""

import json
import shutil
import time
from pathlib import Path

import psutil
import pytest
import torch
from tests.e2e_cpu.carried import must_follow
from tests.e2e_cpu.pods import wait_for
from tests.e2e_cpu.runs import Outcome, finish, run, start
from transformers import AutoConfig, AutoModelForCausalLM

from opd.data.toy import STUDENT_DIR
from opd.rollout.carry import CHECKPOINT_FILE

VLLM = (
    "rollout.name=vllm",
    "rollout.free_cache_engine=false",
    "rollout.enforce_eager=true",
    "rollout.engine_kwargs.enable_sleep_mode=false",  # not on CPUs
    "rollout.engine_kwargs.block_size=16",
)
NUM_STEPS = 6
CARRY = (
    *VLLM,
    "rollout.schedule=carry",
    "rollout.in_flight=32",
    "data.max_response_length=512",
    f"trainer.total_steps={NUM_STEPS}",
    "trainer.save_freq=2",
)
ENDS_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def carried(tmp_path_factory) -> Outcome:
    return _long_answers(tmp_path_factory.mktemp("carried"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Outcome:
    return _long_answers(tmp_path_factory.mktemp("kept"), "rollout.keep_prefixes=true")


def test_it_samples_from_the_weights_of_each_step(tmp_path):
    outcome = run(tmp_path, "opd", *VLLM, "rollout.logprobs_every=1", "trainer.total_steps=4")
    assert outcome.returncode == 0, outcome.output[-6000:]
    agreement = [row["training/rollout_actor_probs_pearson_corr"] for row in outcome.steps]
    assert len(agreement) == 4
    assert min(agreement) > 0.999


@pytest.mark.parametrize(
    "spec", ["grpo", "opd-agent", "opd-agent-grpo", "opd-reward", "eval", "passrate", "opd-agent-eval"]
)
def test_every_kind_ends_well_with_it(tmp_path, spec):
    outcome = run(tmp_path, spec, *VLLM)
    assert outcome.returncode == 0, outcome.output[-6000:]
    assert outcome.result


def test_adapters_reach_it_as_whole_weights(tmp_path):
    outcome = run(tmp_path, "opd", *VLLM, "model.lora.rank=8", "actor.learning_rate=1e-2", "rollout.logprobs_every=1")
    assert outcome.returncode == 0, outcome.output[-6000:]
    assert min(row["training/rollout_actor_probs_pearson_corr"] for row in outcome.steps) > 0.999


def test_answers_that_go_on_over_updates_have_the_versions_that_made_them(carried):
    assert carried.returncode == 0, carried.output[-6000:]
    assert max(row["rollout/age_max"] for row in carried.steps) > 1
    must_follow(_states(carried), rows_per_step=16)


def test_kept_prefixes_are_not_read_again_after_an_update(carried, kept):
    assert kept.returncode == 0, kept.output[-6000:]
    must_follow(_states(kept), rows_per_step=16)
    read, read_again = (sum(row["rollout/tokens_read"] for row in it.steps) for it in (kept, carried))
    assert read < 0.8 * read_again


@pytest.mark.parametrize(
    ("killed", "sets"),
    [("EngineCore", VLLM), ("EngineCore", CARRY), ("VLLM::Worker", CARRY)],
    ids=["strict", "carry", "carry's worker"],
)
def test_an_engine_that_is_killed_ends_the_run_with_its_name(killed, sets, tmp_path):
    process = start(tmp_path, "opd", *sets, "trainer.total_steps=1000")
    try:
        log = tmp_path / "run.log"
        wait_for(lambda: " 2/1000" in log.read_text(), 240, "step 2", log.read_text)
        children = psutil.Process(process.pid).children(recursive=True)
        [engine] = [child for child in children if killed in child.name()]
        engine.kill()
        killed_s = time.monotonic()
        outcome = finish(process, tmp_path, "opd")
    finally:
        process.terminate()
    assert outcome.returncode == 1
    assert "EngineDeadError" in outcome.output or "the engine of vllm_server_0_0" in outcome.output
    assert time.monotonic() - killed_s < ENDS_WITHIN_S


def test_an_engine_that_is_killed_while_it_takes_weights_ends_the_run_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_TAKES_WEIGHTS", "2")
    monkeypatch.setenv("TEST_DIES_TAKING", "1")
    outcome = run(tmp_path, "opd", *VLLM, "trainer.total_steps=1000")
    assert outcome.returncode == 1
    assert "the run has lost the engine of vllm_server_0_0: its process is gone" in outcome.output


def test_weights_that_vllm_cannot_take_end_the_run_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_TAKES_WEIGHTS", "2")
    outcome = run(tmp_path, "opd", *VLLM, "trainer.total_steps=1000")
    assert outcome.returncode == 1
    assert "no room for these weights" in outcome.output
    assert " 3/1000" not in outcome.output


def _long_answers(folder: Path, *sets: str) -> Outcome:
    """A run whose answers are of many blocks of the cache and end by chance: its student's weights are random."""
    student = folder / "student"
    shutil.copytree(STUDENT_DIR, student)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(student)).save_pretrained(student)
    return run(folder, "opd", *CARRY, f"model.path={student}", *sets)


def _states(outcome: Outcome) -> dict[int, dict]:
    folder = outcome.run_dir / "checkpoints"
    return {
        step: json.loads((folder / f"global_step_{step}" / CHECKPOINT_FILE).read_text())
        for step in range(2, NUM_STEPS + 1, 2)
    }
