"""A rollout worker without its servers: batches whose answers are rows or an evaluation's samples, and rounds of the schedule carry."""

import asyncio
from types import SimpleNamespace
from typing import Any

import hydra
import pytest
import ray
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.workers.rollout.replica import TokenOutput

from opd.data.toy import STUDENT_DIR
from opd.experiment import parse_tree
from opd.rollout import manager
from opd.rollout.batches import Batch, RolloutReport
from opd.rollout.carry import CarriedRow
from opd.rollout.seeds import TRAIN, VALIDATION, request_seed
from opd.rollout.worker import RolloutWorker

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": -1}
ROLLOUT = SAMPLING | {"calculate_log_probs": True, "agent": {"default_agent_loop": "single_turn_agent"}, "val_kwargs": SAMPLING | {"temperature": 0.6}}  # fmt: skip


class _Loop:
    """Writes one token, the parity of its seed; an odd one is right, sample 1 of row 5 never comes."""

    def __init__(self, client: Any, asked: list[dict[str, Any]]) -> None:
        self._client, self._asked = client, asked

    async def run(self, sampling: dict[str, Any], *, session_id: int, index: int, **_: Any) -> AgentLoopOutput:
        seed = await self._client.generate("id", sampling_params=sampling)
        self._asked.append(sampling | {"row": int(index), "sample": session_id, "seed": seed})
        if (int(index), session_id) == (5, 1):
            raise ConnectionError("the server went away")
        return AgentLoopOutput(
            prompt_ids=[1], response_ids=[seed % 2], response_mask=[1], metrics=AgentLoopMetrics(),
            extra_fields={"parity": seed % 2},
        )  # fmt: skip


class _Server:
    async def generate(self, _: str, *, sampling_params: dict[str, Any]) -> int:
        return sampling_params["seed"]


@pytest.fixture
def worker() -> RolloutWorker:
    """A worker of a distillation; `asked` is what its loops asked of the server."""
    made = object.__new__(RolloutWorker)
    asked: list[dict[str, Any]] = []

    async def score(_: str, prompt: dict[str, Any], extra_info: dict[str, Any]) -> dict[str, Any]:
        value = float(extra_info["parity"])
        return {"score": value, "acc": value, "pred": "7", "is_short": True, "rate": 0.25}

    spec = parse_tree({"kind": "opd", "seed": 4, "model": {"path": "m"}, "teacher": {"path": "t"}}).spec
    made.__dict__ |= {
        "config": OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}}),
        "ours": SimpleNamespace(spec=spec, sampling=spec, run=SimpleNamespace(run_id="r"), agent=None),
        "_reward_function": "math_reward",
        "_scorer": SimpleNamespace(score=score),
        "tokenizer": AutoTokenizer.from_pretrained(STUDENT_DIR),
        "rollout_config": SimpleNamespace(response_length=8, ignore_eos=True),
        "llm_client": _Server(),
        "num_finished": 0,
        "_served": {},
        "_author": None,
        "_ends": frozenset({1}),
        "_stops": [],
        "asked": asked,
        "_agent_loop": lambda name, client, place: _Loop(client, asked),
    }
    return made


def _batch(num_samples: int = 2, partition: str = VALIDATION) -> Batch:
    prompts = [
        {"uid": uid, "index": index, "data_source": "math", "reward_model": {"ground_truth": "1"}}
        for uid, index in (("a", 5), ("b", 6))
    ]
    is_recorded = partition == VALIDATION
    return Batch(prompts=prompts, partition=partition, step=7, num_samples=num_samples, is_recorded=is_recorded)


class EngineDeadError(Exception):
    """As vLLM's, by name."""


DEAD = ray.exceptions.RayTaskError("generate", "EngineDeadError: see above", EngineDeadError())


def test_recorded_answers_are_reported_with_their_scores(worker):
    report = asyncio.run(worker.generate(_batch()))
    assert report.rows == []
    assert {one["temperature"] for one in worker.asked} == {0.6}
    for one in worker.asked:
        assert one["seed"] == request_seed(4, VALIDATION, 7, one["row"], one["sample"], 0)
    right = {(one["row"], one["sample"]): float(one["seed"] % 2) for one in worker.asked}
    assert right.keys() == {(5, 0), (5, 1), (6, 0), (6, 1)}
    came = {place: acc for place, acc in right.items() if place != (5, 1)}
    assert {(sample.problem_index, sample.sample_index): sample.acc for sample in report.samples} == came
    assert [sample.numbers for sample in report.samples] == [{"is_short": 1.0, "rate": 0.25}] * len(came)
    assert (report.num_trajectories, report.num_failed) == (4, 1)
    assert worker.num_finished == 4


@pytest.mark.parametrize(("partition", "says"), [(TRAIN, ""), (VALIDATION, "3 of 4 answers have ended")])
def test_answers_that_are_only_measured_say_how_far_they_are(monkeypatch, capsys, partition, says):
    class Slow:
        num_finished = 3

        async def generate(self, batch: Batch) -> RolloutReport:
            await asyncio.sleep(0.1)
            return RolloutReport()

    async def local(*_: Any) -> Slow:
        return Slow()

    monkeypatch.setattr(manager, "_local", local)
    monkeypatch.setattr(manager, "PROGRESS_POLL_S", 0.01)
    monkeypatch.setattr(manager, "TELL_S", 0.02)
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"agent": {"num_workers": 0}}}})
    manager.RolloutManager(config, None).generate(_batch(partition=partition))
    assert capsys.readouterr().out.partition("\n")[0] == says


def test_an_answer_without_a_ground_truth_is_not_scored(worker):
    batch = _batch(2, TRAIN)
    batch.prompts[0]["reward_model"]["ground_truth"] = None
    report = asyncio.run(worker.generate(batch))
    assert [row.is_scored for row in report.rows] == [False, True, True]
    assert (report.rows[0].info, report.rows[0].score) == ({}, 0.0)
    worker._reward_function = "package.module:of_my_own"  # may score without one
    assert all(row.is_scored for row in asyncio.run(worker.generate(batch)).rows)


def test_answers_to_train_on_are_rows_in_the_order_of_the_data_with_other_seeds(worker):
    report = asyncio.run(worker.generate(_batch(3, TRAIN)))
    assert [tuple(row.order) for row in report.rows] == [(5, 0), (5, 2), (6, 0), (6, 1), (6, 2)]
    assert worker.asked[0]["seed"] == request_seed(4, TRAIN, 7, 5, 0, 0)
    assert [row.score for row in report.rows] == [float(row.response[0]) for row in report.rows]
    assert (report.samples, {row.uid for row in report.rows}) == ([], {"a", "b"})


def test_an_answer_that_the_limit_cut_off_is_wrong_in_every_number(worker):
    found = {"reward_extra_info": {"score": 1.0, "acc": 1.0, "pred": "7"}}
    cut = SimpleNamespace(response_ids=[2] * 8, reward_score=1.0, extra_fields=found)
    worker._refuse_cut(cut)
    assert cut.reward_score == 0.0
    assert cut.extra_fields["reward_extra_info"] == {"score": 0.0, "acc": 0.0, "pred": "7"}
    for ids in ([2] * 7 + [1], [2] * 7):  # an end token, or room for more
        assert not worker._is_cut_off(SimpleNamespace(response_ids=ids))
    assert worker._is_cut_off(SimpleNamespace(response_ids=[1] * 7 + [2]))


@pytest.mark.parametrize("gone", [DEAD, ray.exceptions.ActorUnavailableError("its node may be lost", None)])
def test_a_server_that_is_gone_ends_the_run_after_what_was_answered_has_been_reported(worker, gone):
    class Dying(_Loop):
        async def run(self, sampling: dict[str, Any], *, session_id: int, index: int, **fields: Any) -> AgentLoopOutput:
            if int(index) == 6:
                raise gone
            return await super().run(sampling, session_id=session_id, index=index, **fields)

    worker.__dict__["_agent_loop"] = lambda name, client, place: Dying(client, worker.asked)
    report = asyncio.run(worker.generate(_batch(num_samples=1)))
    assert report.fault is gone
    assert (report.num_trajectories, report.num_failed, len(report.samples)) == (2, 1, 1)


def test_a_cut_batch_reports_the_answers_that_came_and_neither_waits_for_the_others_nor_calls_them_failed(worker):
    class Hanging(_Loop):
        async def run(self, sampling: dict[str, Any], *, session_id: int, index: int, **fields: Any) -> AgentLoopOutput:
            if int(index) == 6:
                is_asked.set()
                await asyncio.Event().wait()
            return await super().run(sampling, session_id=session_id, index=index, **fields)

    async def answered() -> RolloutReport:
        answering = asyncio.create_task(worker.generate(_batch()))
        await is_asked.wait()
        while worker.num_finished < 2:  # both of row 5
            await asyncio.sleep(0)
        await worker.cut()
        return await answering

    is_asked = asyncio.Event()
    worker._agent_loop = lambda name, client, place: Hanging(client, worker.asked)
    report = asyncio.run(answered())
    assert [(sample.problem_index, sample.sample_index) for sample in report.samples] == [(5, 0)]
    assert (report.num_trajectories, report.num_failed, report.num_cut) == (4, 1, 2)


@pytest.mark.parametrize(("every", "step", "expected"), [(1, 5, True), (3, 1, True), (3, 3, False), (3, 4, True)])
def test_log_probabilities_are_asked_for_in_every_so_many_th_step_of_training(worker, every, step, expected):
    worker.ours.sampling = SimpleNamespace(rollout=SimpleNamespace(logprobs_every=every))
    assert worker._sampling(TRAIN, step)["logprobs"] is expected
    assert worker._sampling(VALIDATION, step)["logprobs"] is False


class _Rounds:
    """A server of rounds: answers with the prompt's first token, as many as its second says, and fails where that is 0."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []

    async def generate(
        self, _: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **__: Any
    ) -> TokenOutput:
        self.asked.append((prompt_ids, sampling_params["max_tokens"]))
        token, length, *there = prompt_ids
        if length == 0:
            raise ConnectionError("the server went away")
        if length < 0:
            raise DEAD
        num = min(sampling_params["max_tokens"], length - len(there))
        return TokenOutput(token_ids=[token] * num, extra_fields={"global_steps": 4})


class _Writing:
    async def ct_build_initial_tokens(self, raw_prompt: list[int]) -> list[int]:
        return raw_prompt


@pytest.fixture
def rounds(worker: RolloutWorker) -> RolloutWorker:
    """The worker with rows that end by their lengths."""
    worker.__dict__ |= {"llm_client": _Rounds(), "_agent_loop": lambda name, client: _Writing()}
    return worker


def _begun(number: int, length: int) -> tuple[dict[str, Any], CarriedRow]:
    return {"raw_prompt": [100 + number, length]}, CarriedRow(number=number, index=number, sample=0, limit=50)


def test_a_row_that_ends_is_followed_by_the_next_with_what_the_round_has_left(rounds):
    slots = [[_begun(0, 3), _begun(1, 4)], [_begun(2, 9), _begun(3, 1)]]
    grown = asyncio.run(rounds.advance(slots, 5))
    assert [[len(growth.tokens) for growth in slot] for slot in grown] == [[3, 2], [5]]
    assert [[growth.is_complete for growth in slot] for slot in grown] == [[True, False], [False]]
    assert {growth.version for slot in grown for growth in slot} == {4}
    assert rounds.num_finished == 3


def test_a_later_piece_follows_the_tokens_of_prompt_and_row_without_the_data(rounds):
    (_, row) = _begun(2, 9)
    for _ in range(2):
        prompt = {} if row.prompt_ids else {"raw_prompt": [102, 9]}
        ((growth,),) = asyncio.run(rounds.advance([[(prompt, row)]], 5))
        row.grow(growth, 0)
    assert rounds.llm_client.asked == [([102, 9], 5), ([102, 9, *[102] * 5], 5)]
    assert (row.tokens, row.is_complete) == ([102] * 9, True)


def test_a_row_that_cannot_be_answered_is_given_up_and_an_engine_that_is_dead_ends_the_round(rounds):
    grown = asyncio.run(rounds.advance([[_begun(0, 0), _begun(1, 4)], [_begun(2, 9)]], 5))
    assert [[growth.error for growth in slot] for slot in grown] == [["the server went away"], [""]]
    with pytest.raises(ray.exceptions.RayTaskError):
        asyncio.run(rounds.advance([[_begun(0, -1)], [_begun(2, 9)]], 5))


def test_a_complete_row_trains_behind_the_prompt_that_its_tokens_followed(worker):
    class Rendered:
        """Writes the prompt as it is today."""

        async def run(self, *_: Any, **__: Any) -> AgentLoopOutput:
            return AgentLoopOutput(
                prompt_ids=[1, 2],
                response_ids=[7, 8],
                response_mask=[1, 1],
                metrics=AgentLoopMetrics(),
                reward_score=1.0,
            )

    worker.__dict__ |= {"_agent_loop": lambda name, client, place: Rendered()}
    for ids in ([1, 5, 2], [1, 2]):
        batch = Batch(
            prompts=[{"uid": "u", "index": 0, "agent_name": "single_turn_agent"}], partition=TRAIN, step=3, num_samples=1,
            given=[{1: [7, 8]}], prompt_ids=[{1: ids}] if len(ids) > 2 else (),
        )  # fmt: skip
        row = asyncio.run(worker._trajectory(batch, 0, 1))
        assert (row.prompt.tolist(), row.response.tolist(), row.order.sample) == (ids, [7, 8], 1)
        assert row.columns["rm_scores"].tolist() == [0.0, 1.0]


def test_a_prompt_is_written_once_for_all_of_its_answers(worker, monkeypatch):
    written: list[str] = []

    class Writer(AgentLoopBase):
        def __init__(self, **_: Any) -> None:
            pass

        async def ct_build_initial_tokens(self, messages: str) -> list[int]:
            written.append(messages)
            return [len(written)]

        async def run(self, _: dict[str, Any], *, uid: str, **__: Any) -> AgentLoopOutput:
            ids = await self.ct_build_initial_tokens(uid)
            return AgentLoopOutput(
                prompt_ids=ids, response_ids=[1], response_mask=[1], metrics=AgentLoopMetrics(), reward_score=1.0
            )

    del worker._agent_loop
    worker.__dict__ |= {"processor": None, "hf_model_type": None, "dataset_cls": None, "tools": []}
    worker.config.data = {}
    monkeypatch.setattr(hydra.utils, "get_class", lambda _: Writer)
    report = asyncio.run(worker.generate(_batch(3, TRAIN)))
    assert written == ["a", "b"]
    assert [row.prompt.tolist() for row in report.rows] == [[1]] * 3 + [[2]] * 3
