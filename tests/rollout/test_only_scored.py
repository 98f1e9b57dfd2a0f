"""A batch whose answers are recorded for their scores alone: sampled as in training, by seeds of its own, without rows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from opd.data.toy import STUDENT_DIR
from opd.experiment import parse_tree
from opd.rollout.seeds import PASS_RATES, TRAIN, request_seed
from opd.rollout.worker import Batch, RolloutReport, RolloutWorker

ROLLOUT = {"n": 3, "temperature": 0.7, "top_p": 0.9, "top_k": -1, "val_kwargs": {"n": 1, "temperature": 0.0, "top_p": 1.0, "top_k": -1}}  # fmt: skip


class _Loop:
    """Writes one token, which tells the parity of its seed; an odd one is right, sample 1 of row 5 never comes."""

    def __init__(self, client: Any, asked: list[dict[str, Any]]) -> None:
        self._client, self._asked = client, asked

    async def run(self, sampling: dict[str, Any], *, session_id: int, index: int, **_: Any) -> AgentLoopOutput:
        seed = await self._client.generate("id", sampling_params=sampling)
        self._asked.append(sampling | {"row": int(index), "sample": session_id, "seed": seed})
        if (int(index), session_id) == (5, 1):
            raise ConnectionError("the server went away")
        return AgentLoopOutput(
            prompt_ids=[1], response_ids=[seed % 2], response_mask=[1], metrics=AgentLoopMetrics(), extra_fields={}
        )


class _Server:
    async def generate(self, _: str, *, sampling_params: dict[str, Any]) -> int:
        return sampling_params["seed"]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> RolloutWorker:
    """A worker of a distillation, without its servers; `asked` is what it asked of them."""
    made = object.__new__(RolloutWorker)
    asked: list[dict[str, Any]] = []

    async def score(outputs: list[AgentLoopOutput], kwargs: dict[str, Any]) -> None:
        outputs[-1].reward_score = float(outputs[-1].response_ids[0])
        info = {"acc": outputs[-1].reward_score, "pred": "7", "is_short": True, "rate": 0.25}
        outputs[-1].extra_fields["reward_extra_info"] = info

    spec = parse_tree({"kind": "opd", "seed": 4, "model": {"path": "m"}, "teacher": {"path": "t"}}).spec
    rollout = {"calculate_log_probs": True, "agent": {"default_agent_loop": "single_turn_agent"}} | ROLLOUT
    made.__dict__ |= {
        "config": OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "algorithm": {}}),
        "ours": SimpleNamespace(spec=spec, sampling=spec, run=SimpleNamespace(run_id="r"), agent=None),
        "_reward_function": "math_reward",
        "tokenizer": AutoTokenizer.from_pretrained(STUDENT_DIR),
        "rollout_config": SimpleNamespace(response_length=8),
        "llm_client": _Server(),
        "num_finished": 0,
        "_ends": frozenset({1}),
        "_stops": [],
        "asked": asked,
        "_agent_loop": lambda name, client: _Loop(client, asked),
        "_compute_score": score,
    }
    return made


def _batch(num_samples: int = 2, partition: str = PASS_RATES) -> Batch:
    prompts = [
        {"uid": uid, "index": index, "data_source": "math", "reward_model": {"ground_truth": "1"}}
        for uid, index in (("a", 5), ("b", 6))
    ]
    is_recorded = partition == PASS_RATES
    return Batch(prompts=prompts, partition=partition, step=7, num_samples=num_samples, is_recorded=is_recorded)


def test_recorded_answers_are_reported_with_their_scores(worker):
    report = asyncio.run(worker.generate(_batch()))
    assert report.rows == []
    assert {(one["row"], one["sample"]) for one in worker.asked} == {(5, 0), (5, 1), (6, 0), (6, 1)}
    assert {one["temperature"] for one in worker.asked} == {0.7}
    for one in worker.asked:
        assert one["seed"] == request_seed(4, PASS_RATES, 7, one["row"], one["sample"], 0)
    right = {(one["row"], one["sample"]): float(one["seed"] % 2) for one in worker.asked}
    came = {place: acc for place, acc in right.items() if place != (5, 1)}
    assert {(sample.problem_index, sample.sample_index): sample.acc for sample in report.samples} == came
    assert [sample.numbers for sample in report.samples] == [{"is_short": 1.0, "rate": 0.25}] * len(came)
    assert (report.num_trajectories, report.num_failed) == (4, 1)


class EngineDeadError(Exception):
    """As vLLM's, by name."""


def test_an_engine_that_is_dead_ends_the_run_after_what_was_answered_has_been_reported(worker):
    class Dying(_Loop):
        async def run(self, sampling: dict[str, Any], *, session_id: int, index: int, **fields: Any) -> AgentLoopOutput:
            if int(index) == 6:
                raise ray.exceptions.RayTaskError("generate", "EngineDeadError: see above", EngineDeadError())
            return await super().run(sampling, session_id=session_id, index=index, **fields)

    worker.__dict__["_agent_loop"] = lambda name, client: Dying(client, worker.asked)
    report = asyncio.run(worker.generate(_batch(num_samples=1)))
    assert isinstance(report.fault, ray.exceptions.RayTaskError)
    assert (report.num_trajectories, report.num_failed, len(report.samples)) == (2, 1, 1)


def _cut_once_row_6_is_asked(worker: RolloutWorker, batch: Batch) -> RolloutReport:
    """The report of a batch that is cut when the answers to data row 6 still have to come, and those to row 5 have."""

    class Hanging(_Loop):
        async def run(self, sampling: dict[str, Any], *, session_id: int, index: int, **fields: Any) -> AgentLoopOutput:
            if int(index) == 6:
                is_asked.set()
                await may_answer.wait()
            return await super().run(sampling, session_id=session_id, index=index, **fields)

    async def answered() -> RolloutReport:
        answering = asyncio.create_task(worker.generate(batch))
        await is_asked.wait()
        while worker.num_finished < 2:
            await asyncio.sleep(0)
        await worker.cut()
        may_answer.set()
        return await answering

    is_asked, may_answer = asyncio.Event(), asyncio.Event()
    worker._agent_loop = lambda name, client: Hanging(client, worker.asked)
    return asyncio.run(answered())


def test_a_cut_batch_reports_the_answers_that_came_and_neither_waits_for_the_others_nor_calls_them_failed(worker):
    report = _cut_once_row_6_is_asked(worker, _batch())
    assert [(sample.problem_index, sample.sample_index) for sample in report.samples] == [(5, 0)]
    assert (report.num_trajectories, report.num_failed, report.num_cut) == (4, 1, 2)


def test_answers_to_train_on_are_rows_in_the_order_of_the_data_with_other_seeds(worker):
    report = asyncio.run(worker.generate(_batch(3, TRAIN)))
    assert [tuple(row.order) for row in report.rows] == [(5, 0, 0), (5, 2, 0), (6, 0, 0), (6, 1, 0), (6, 2, 0)]
    assert worker.asked[0]["seed"] == request_seed(4, TRAIN, 7, 5, 0, 0)
    assert [row.score for row in report.rows] == [float(row.response[0]) for row in report.rows]
    assert (report.samples, {row.uid for row in report.rows}) == ([], {"a", "b"})


@pytest.mark.parametrize(("every", "step", "expected"), [(1, 5, True), (3, 1, True), (3, 3, False), (3, 4, True)])
def test_log_probabilities_are_asked_for_in_every_so_many_th_step_of_training(worker, every, step, expected):
    worker.ours.sampling = SimpleNamespace(rollout=SimpleNamespace(logprobs_every=every))
    assert worker._sampling(TRAIN, step)["logprobs"] is expected
    assert worker._sampling(PASS_RATES, step)["logprobs"] is False
