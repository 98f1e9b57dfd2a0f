"""Right conversations, token by token: what the tiny models are taught before distillation."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from opd.agent.dialogue import Dialogue, Sampled
from opd.agent.environment import Environment
from opd.envs.travel.data.generate import answer_text
from opd.envs.travel.episode import PRICE_RANGES
from opd.envs.travel.task import Question, parse_task


def right_call(question: Question) -> str:
    """The turn that asks for the price."""
    call = {"name": "get_price", "arguments": {"city": question.city, "name": question.name}}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def right_answer(reply: str) -> str:
    """The turn that tells it."""
    return answer_text(str(json.loads(reply)["price"]))


def guesses(
    environment: Environment, tokenizer: Any, rows: Sequence[Mapping[str, Any]], *, seed: int
) -> list[Dialogue]:
    """Conversations that answer each row with a price out of the air, and look nothing up."""
    rng = random.Random(seed)
    low, high = min(low for low, _ in PRICE_RANGES.values()), 999

    async def one(row: Mapping[str, Any], price: int) -> Dialogue:
        async def say(ids: Sequence[int], max_tokens: int) -> Sampled:
            return _said(tokenizer, answer_text(str(price)))

        extra = row["extra_info"]
        return await environment.runner(extra).run(row["prompt"], generate=say, tools=environment.tools(extra))

    async def all_of_them() -> list[Dialogue]:
        return [await one(row, rng.randint(low, high)) for row in rows]

    return asyncio.run(all_of_them())


def _said(tokenizer: Any, text: str) -> Sampled:
    return Sampled(
        token_ids=tokenizer(text + tokenizer.eos_token, add_special_tokens=False)["input_ids"], logprobs=None
    )


def lessons(environment: Environment, tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> list[Dialogue]:
    """The right conversation of each row, through the very environment that the models will act in."""

    async def one(row: Mapping[str, Any]) -> Dialogue:
        question = parse_task(row["reward_model"]["ground_truth"])
        assert isinstance(question, Question)
        tools = _Heard(environment.tools(row["extra_info"]))

        async def say(ids: Sequence[int], max_tokens: int) -> Sampled:
            return _said(tokenizer, right_answer(tools.last) if tools.last else right_call(question))

        return await environment.runner(row["extra_info"]).run(row["prompt"], generate=say, tools=tools)

    async def all_of_them() -> list[Dialogue]:
        return list(await asyncio.gather(*(one(row) for row in rows)))

    return asyncio.run(all_of_them())


class _Heard:
    """Tools that remember their last reply."""

    def __init__(self, tools: Any):
        self._tools = tools
        self.names = tools.names
        self.last = ""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        reply = await self._tools.call(name, arguments)
        self.last = reply.text
        return reply
