"""What a run of `bench_step` is made of, and what is read from its rows."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from tests.benchmarks.gpu.bench_step import ALL_PHASES, NUM_PROMPTS, SPEC
from tests.benchmarks.gpu.phases import PHASES as VARIABLE
from tests.benchmarks.gpu.phases import Phase, _bound, _set_answers, as_text, phase_of
from tests.gpu.facts import write_record

from opd.experiment.load import parse_tree
from opd.rollout.worker import Batch

PHASES = (Phase(name="a", rows=8, tokens=16, steps=2), Phase(name="b", rows=16, tokens=16, mean=4, steps=2))


def test_every_step_is_of_one_phase():
    assert [phase_of(PHASES, step).name for step in range(1, 5)] == ["a", "a", "b", "b"]
    with pytest.raises(ValueError, match="after the last phase"):
        phase_of(PHASES, 5)


def test_lengths_are_those_of_the_phase_and_the_same_in_every_run():
    assert PHASES[0].length(0, 0) == 16
    drawn = [PHASES[1].length(index, 0) for index in range(1000)]
    assert drawn == [PHASES[1].length(index, 0) for index in range(1000)]
    assert max(drawn) == 16
    assert 3 < sum(drawn) / len(drawn) < 4.5, "the mean, less what is cut off"


def test_the_benchmarks_spec_is_one_and_its_batches_divide():
    tree = SPEC | {"name": "step", "model": {"path": "student"}, "teacher": {"path": "teacher"}}
    spec = parse_tree(tree).spec
    carried = parse_tree(tree | {"rollout": SPEC["rollout"] | {"schedule": "carry", "in_flight": 192}}).spec
    assert carried.rollout.schedule == "carry"
    assert spec.trainer.gpus_per_node == 1
    for phase in ALL_PHASES.values():
        assert phase.rows % NUM_PROMPTS == 0
        assert phase.tokens <= spec.data.max_response_length


SENT = """
import sys
import tests.benchmarks.gpu.phases
from ray import cloudpickle
from opd.rollout.manager import RolloutActor
sys.stdout.buffer.write(cloudpickle.dumps(RolloutActor.__ray_metadata__.modified_class))
"""
RECEIVED = """
import sys
from ray import cloudpickle
worker = cloudpickle.load(sys.stdin.buffer)
print(worker._trajectory.__qualname__)
"""


def test_a_step_has_its_phases_number_and_lengths_of_answers(monkeypatch):
    monkeypatch.setenv(VARIABLE, as_text(PHASES))

    class Worker:
        async def _trajectory(self, batch, place, sample):
            return batch.max_tokens

    _bound(Worker)

    def asked(step: int) -> tuple[int, int]:
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"n": 4}}, "data": {"train_batch_size": 4}})
        _set_answers(config, PHASES, step)
        batch = Batch(prompts=[{"index": 7}], partition="train", step=step, num_samples=1)
        return config.actor_rollout_ref.rollout.n, asyncio.run(Worker()._trajectory(batch, 0, 0))

    assert [asked(step) for step in (1, 2, 3)] == [(2, 16), (2, 16), (4, PHASES[1].length(7, 0))]


@pytest.mark.slow
def test_a_rollout_worker_in_a_process_of_its_own_has_the_phases_lengths_too():
    def run(code: str, given: bytes) -> bytes:
        env = os.environ | {VARIABLE: as_text(PHASES), "VERL_USE_EXTERNAL_MODULES": "tests.benchmarks.gpu.phases"}
        return subprocess.run(
            [sys.executable, "-c", code], input=given, env=env, capture_output=True, check=True
        ).stdout

    assert run(RECEIVED, run(SENT, b"")).split()[-1] == b"_bound.<locals>.trajectory"


def test_a_record_has_six_digits_and_a_line_for_each_entry(tmp_path):
    record = {"environment": {"device": "one"}, "runs": {"a": {"step_s": 1.23456789, "all": [1.0, 2.0]}, "b": {}}}
    write_record(tmp_path / "new/record.json", record)
    text = (tmp_path / "new/record.json").read_text()
    assert text.splitlines()[3] == ' "a": {"step_s": 1.23457, "all": [1.0, 2.0]},'
    assert json.loads(text) == record | {"runs": {"a": {"step_s": 1.23457, "all": [1.0, 2.0]}, "b": {}}}
