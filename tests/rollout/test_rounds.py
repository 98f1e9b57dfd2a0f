"""A round of the schedule carry in a rollout worker: rows of a slot follow one another, and one that cannot be answered is given up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.workers.rollout.replica import TokenOutput

from opd.experiment import parse_tree
from opd.rollout.carry import CarriedRow
from opd.rollout.seeds import TRAIN
from opd.rollout.worker import Batch, RolloutWorker


class _Server:
    """Answers with the prompt's first token, as many as its second says, and fails where that is 0."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []

    async def generate(
        self, _: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **__: Any
    ) -> TokenOutput:
        self.asked.append((prompt_ids, sampling_params["max_tokens"]))
        token, length, *there = prompt_ids
        if length == 0:
            raise ConnectionError("the server went away")
        num = min(sampling_params["max_tokens"], length - len(there))
        return TokenOutput(token_ids=[token] * num, extra_fields={"global_steps": 4})


class _Loop:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def run(self, sampling: dict[str, Any], *, session_id: int, raw_prompt: list[int]) -> None:
        await self._client.generate("id", prompt_ids=raw_prompt, sampling_params=sampling)


@pytest.fixture
def worker() -> RolloutWorker:
    """A worker of a distillation whose rows end by their lengths."""
    made = object.__new__(RolloutWorker)
    spec = parse_tree({"kind": "opd", "seed": 4, "model": {"path": "m"}, "teacher": {"path": "t"}}).spec
    rollout = {"calculate_log_probs": True, "agent": {"default_agent_loop": "single_turn_agent"}}
    sampling = {"temperature": 0.7, "top_p": 0.9, "top_k": -1}
    made.__dict__ |= {
        "config": OmegaConf.create({"actor_rollout_ref": {"rollout": rollout | sampling}, "algorithm": {}}),
        "ours": SimpleNamespace(spec=spec, sampling=spec),
        "_reward_function": "",
        "_ends": frozenset(),
        "_stops": [],
        "llm_client": _Server(),
        "num_finished": 0,
        "_agent_loop": lambda name, client: _Loop(client),
    }
    return made


def _begun(number: int, length: int) -> tuple[dict[str, Any], CarriedRow]:
    return {"raw_prompt": [100 + number, length]}, CarriedRow(number=number, index=number, sample=0, limit=50)


def test_a_row_that_ends_is_followed_by_the_next_with_what_the_round_has_left(worker):
    slots = [[_begun(0, 3), _begun(1, 4)], [_begun(2, 9), _begun(3, 1)]]
    grown = asyncio.run(worker.advance(slots, 5))
    assert [[len(growth.tokens) for growth in slot] for slot in grown] == [[3, 2], [5]]
    assert [[growth.is_complete for growth in slot] for slot in grown] == [[True, False], [False]]
    assert {growth.version for slot in grown for growth in slot} == {4}
    assert worker.num_finished == 3


def test_a_later_piece_follows_the_tokens_of_prompt_and_row_without_the_data(worker):
    (_, row) = _begun(2, 9)
    for _ in range(2):
        prompt = {} if row.prompt_ids else {"raw_prompt": [102, 9]}
        ((growth,),) = asyncio.run(worker.advance([[(prompt, row)]], 5))
        row.grow(growth, 0)
    assert worker.llm_client.asked == [([102, 9], 5), ([102, 9, *[102] * 5], 5)]
    assert (row.tokens, row.is_complete) == ([102] * 9, True)


class EngineDeadError(Exception):
    """As vLLM's, by name."""


def test_an_engine_that_is_dead_ends_the_round_though_its_servers_actor_lives(worker):
    async def generate(*_: Any, **__: Any) -> TokenOutput:
        raise ray.exceptions.RayTaskError("generate", "EngineDeadError: see above", EngineDeadError())

    worker.llm_client.generate = generate
    with pytest.raises(ray.exceptions.RayTaskError):
        asyncio.run(worker.advance([[_begun(0, 3)], [_begun(2, 9)]], 5))


def test_a_complete_row_trains_behind_the_prompt_that_its_tokens_followed(worker):
    class Rendered:
        """Writes the prompt as it is today."""

        async def run(self, *_: Any, **__: Any) -> AgentLoopOutput:
            return AgentLoopOutput(
                prompt_ids=[1, 2], response_ids=[7, 8], response_mask=[1, 1], num_turns=2, metrics=AgentLoopMetrics()
            )

    async def score(outputs: list[AgentLoopOutput], **_: Any) -> None:
        outputs[-1].reward_score, outputs[-1].extra_fields["reward_extra_info"] = 1.0, {}

    worker.__dict__ |= {"_agent_loop": lambda name, client: Rendered(), "_compute_score": score, "_keeper": None}
    for ids in ([1, 5, 2], [1, 2]):
        batch = Batch(
            prompts=[{"uid": "u", "index": 0, "agent_name": "single_turn_agent"}], partition=TRAIN, step=3, num_samples=1,
            given=[{1: [7, 8]}], prompt_ids=[{1: ids}] if len(ids) > 2 else (),
        )  # fmt: skip
        (row,) = asyncio.run(worker._trajectory(batch, 0, 1))
        assert (row.prompt.tolist(), row.response.tolist(), row.order.sample) == (ids, [7, 8], 1)


def test_a_row_that_cannot_be_answered_is_given_up_and_the_others_are_not(worker):
    grown = asyncio.run(worker.advance([[_begun(0, 0), _begun(1, 4)], [_begun(2, 9)]], 5))
    assert [[growth.error for growth in slot] for slot in grown] == [["the server went away"], [""]]
