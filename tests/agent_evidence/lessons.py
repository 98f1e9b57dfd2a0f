"""Right conversations, token by token: what the tiny models are taught before distillation."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opd.agent.dialogue import Dialogue, Sampled
from opd.agent.loop import Shared
from opd_envs.travel.database import PRICE_RANGES
from opd_envs.travel.generate import answer_text
from opd_envs.travel.task import Question, parse_task


def right_call(question: Question) -> str:
    """The turn that asks for the price."""
    call = {"name": "get_price", "arguments": {"city": question.city, "name": question.name}}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def right_answer(reply: str) -> str:
    """The turn that tells it."""
    return answer_text(str(json.loads(reply)["price"]))


def guesses(environment: Shared, tokenizer: Any, rows: Sequence[Mapping[str, Any]], *, seed: int) -> list[Dialogue]:
    """Conversations that answer each row with a price out of the air, and look nothing up."""
    rng = random.Random(seed)
    low, high = min(low for low, _ in PRICE_RANGES.values()), 999
    return conversations(environment, tokenizer, rows, lambda row, reply: answer_text(str(rng.randint(low, high))))


def lessons(environment: Shared, tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> list[Dialogue]:
    """The right conversation of each row."""

    def say(row: Mapping[str, Any], reply: str) -> str:
        question = parse_task(row["reward_model"]["ground_truth"])
        assert isinstance(question, Question)
        return right_answer(reply) if reply else right_call(question)

    return conversations(environment, tokenizer, rows, say)


def conversations(
    environment: Shared,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    say: Callable[[Mapping[str, Any], str], str],
) -> list[Dialogue]:
    """A conversation a row, through the very environment that the models will act in.

    Args:
        say: the next turn, from the row and the last tool reply ("" before the first).
    """

    async def one(row: Mapping[str, Any]) -> Dialogue:
        tools = _Heard(environment.tools(row["extra_info"]))

        async def generate(ids: Sequence[int], max_tokens: int) -> Sampled:
            return _said(tokenizer, say(row, tools.last))

        return await environment.runner(row["extra_info"]).run(row["prompt"], generate=generate, tools=tools)

    async def all_of_them() -> list[Dialogue]:
        return list(await asyncio.gather(*(one(row) for row in rows)))

    return asyncio.run(all_of_them())


def _said(tokenizer: Any, text: str) -> Sampled:
    return Sampled(
        token_ids=tokenizer(text + tokenizer.eos_token, add_special_tokens=False)["input_ids"], logprobs=None
    )


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
