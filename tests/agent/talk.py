"""Dialogues without a model: a small real tokenizer, turns written in advance, and an account of who wrote each token."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.agent_evidence.tokenizer import build_tokenizer

from opd.agent.conversation import Conversation
from opd.agent.dialogue import Dialogue, DialogueRunner, Limits, Sampled
from opd.agent.loop import truncate_reply
from opd.agent.parsing import CallParser, HermesParser
from opd.agent.tools import ToolReply

TOKENIZER = build_tokenizer(["system user assistant price city name the of"] * 3)
END = TOKENIZER.eos_token
SCHEMA = {
    "type": "function",
    "function": {"name": "price", "description": "A price.", "parameters": {"type": "object", "properties": {}}},
}
QUESTION = [{"role": "user", "content": "the price of 静州"}]


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def call(name: str = "price", /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


@dataclass(kw_only=True)
class Tools:
    """Tools that answer by a function of the arguments and remember what they were asked."""

    answer: Callable[[str, Mapping[str, Any]], str] = lambda name, arguments: "42"
    names: Sequence[str] = ("price",)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        self.asked.append((name, dict(arguments)))
        await asyncio.sleep(0)
        return ToolReply(self.answer(name, arguments), seconds=0.5)


def runner(
    parser: CallParser | None = None, max_reply_tokens: int = 200, tokenizer: Any = TOKENIZER, **limits: Any
) -> DialogueRunner:
    bounds = {"max_prompt_tokens": 500, "max_response_tokens": 5000, "max_assistant_turns": 60, "max_parallel_calls": 2}
    bounds |= limits
    return DialogueRunner(
        tokenizer=tokenizer,
        conversation=Conversation(tokenizer, tools=[SCHEMA], max_parallel_calls=bounds["max_parallel_calls"]),
        parser=parser or HermesParser(),
        truncate=partial(truncate_reply, tokenizer=TOKENIZER, max_tokens=max_reply_tokens),
        limits=Limits(**bounds),
    )


def talk(turns: Sequence[str], tools: Tools | None = None, messages: Any = QUESTION, **settings: Any) -> Dialogue:
    """Hold a dialogue in which the model says `turns`; each is cut at the budget, as a server would."""
    following = iter(turns)

    async def generate(ids: Sequence[int], max_tokens: int) -> Sampled:
        said = ids_of(next(following))[:max_tokens]
        return Sampled(token_ids=said, logprobs=[-0.25] * len(said))

    return asyncio.run(runner(**settings).run(messages, generate=generate, tools=tools or Tools()))


def text_of(ids: Sequence[int]) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=False)


def spans(dialogue: Dialogue) -> list[tuple[int, str]]:
    """(mask, text) of the response, cut where the mask changes."""
    out: list[tuple[int, list[int]]] = []
    for token, trained in zip(dialogue.response_ids, dialogue.mask, strict=True):
        if not out or out[-1][0] != trained:
            out.append((trained, []))
        out[-1][1].append(token)
    return [(trained, text_of(ids)) for trained, ids in out]
