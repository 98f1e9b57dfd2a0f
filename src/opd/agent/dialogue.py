"""One conversation of a model with tools, token by token: turns, calls, replies and the mask that says who wrote what."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from opd.agent.conversation import Conversation
from opd.agent.parsing import CallParser, ToolCall, without_thought
from opd.agent.tools import ToolReply
from opd.data.turn_ends import end_tokens

# Why a conversation ended.
ANSWERED = "answered"
RESPONSE_LENGTH = "response_length"
"""The model's turn was cut at the response budget."""
NO_ROOM_FOR_REPLY = "no_room_for_reply"
"""The tools' replies would not leave a token of the budget: they were not appended."""
ASSISTANT_TURNS = "max_assistant_turns"
UNFINISHED_TURN = "unfinished_turn"
"""The server stopped the model's turn before its end and before the budget's (an abort)."""
ENDINGS = (ANSWERED, RESPONSE_LENGTH, NO_ROOM_FOR_REPLY, ASSISTANT_TURNS, UNFINISHED_TURN)

UNREADABLE = "(unreadable)"
"""Name of the tool in a call that could not be read."""


class Tools(Protocol):
    """The tools of one conversation."""

    @property
    def names(self) -> Collection[str]:
        """Names that may be called."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Run one call; an error is a reply, never an exception."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Tokens of one turn of the model."""

    token_ids: Sequence[int]
    logprobs: Sequence[float] | None


Generate = Callable[[Sequence[int], int], Awaitable[Sampled]]
"""(ids so far, most tokens) -> the model's next turn."""
Truncate = Callable[[str], tuple[str, bool]]
"""A tool's reply -> (as the model may see it, whether it was cut)."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a conversation. Tokens of a response are the model's and the tools' together."""

    max_prompt_tokens: int
    max_response_tokens: int
    max_assistant_turns: int
    max_parallel_calls: int = 1


@dataclass(frozen=True, kw_only=True)
class CallRecord:
    """One call and what came of it."""

    name: str
    arguments: dict[str, Any]
    problem: str
    """Why it was not run; empty if it was."""
    reply: str
    """As the model saw it."""
    error: bool
    seconds: float
    truncated: bool = False
    surplus: bool = False
    """Beyond `max_parallel_calls`: answered with an error and not run."""
    malformed: bool = False
    """The call's text was not in the format, or its arguments no object."""
    known: bool = False
    """Whether a tool has this name: what a model makes up must not become the name of a metric."""


@dataclass(kw_only=True)
class Turn:
    """One turn of the model and the calls it made."""

    text: str
    num_tokens: int
    calls: list[CallRecord] = field(default_factory=list)
    num_reply_tokens: int = 0
    """Tokens between this turn and the next, the template's own included."""


@dataclass(kw_only=True)
class Dialogue:
    """A finished conversation: `mask` and `logprobs` run along `response_ids`; mask 1 = sampled by the model."""

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    """Of the sampled tokens, 0 elsewhere; None where the server gives none."""
    turns: list[Turn] = field(default_factory=list)
    ending: str = ANSWERED
    num_markers_broken: int = 0
    """Markers of the chat format found in tool replies, and taken apart."""

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.response_ids

    def add(self, token_ids: Sequence[int], *, sampled: bool, logprobs: Sequence[float] | None = None) -> None:
        """Append tokens of one writer."""
        if logprobs is not None and len(logprobs) != len(token_ids):
            raise ValueError(f"the server gave {len(logprobs)} log-probabilities for {len(token_ids)} tokens")
        if sampled and not self.response_ids:
            self.logprobs = None if logprobs is None else []
        self.response_ids += token_ids
        self.mask += [int(sampled)] * len(token_ids)
        if self.logprobs is not None:
            self.logprobs += [0.0] * len(token_ids) if logprobs is None else logprobs


class DialogueRunner:
    """Shared parts of the conversations of one model in one environment."""

    def __init__(
        self, *, tokenizer: Any, conversation: Conversation, parser: CallParser, truncate: Truncate, limits: Limits
    ):
        self._tokenizer = tokenizer
        self.conversation = conversation
        self.parser = parser
        self._truncate = truncate
        self.limits = limits
        self.end_tokens = frozenset({*end_tokens(tokenizer), *parser.stop_token_ids})

    async def run(self, messages: Sequence[Mapping[str, Any]], *, generate: Generate, tools: Tools) -> Dialogue:
        """Hold one conversation.

        Raises:
            ValueError: the prompt is longer than its limit (such prompts are dropped, and counted, when data is read).
        """
        dialogue = self.begin(messages)
        while (ending := await self._round(dialogue, generate, tools)) is None:
            pass
        dialogue.ending = ending
        return dialogue

    def begin(self, messages: Sequence[Mapping[str, Any]]) -> Dialogue:
        """Return a conversation that has its prompt alone; raises as `run`."""
        prompt = self.conversation.prompt(messages)
        if len(prompt) > self.limits.max_prompt_tokens:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens with its tools, data.max_prompt_length is "
                f"{self.limits.max_prompt_tokens}: raise it, or drop such prompts (data.filter_overlong)"
            )
        return Dialogue(prompt_ids=prompt)

    async def _round(self, dialogue: Dialogue, generate: Generate, tools: Tools) -> str | None:
        """Add a turn of the model and the replies to its calls; return the ending, or None to continue."""
        limits = self.limits
        ending, calls = await self.take_turn(dialogue, generate)
        if ending or not calls:
            return ending or ANSWERED
        if len(dialogue.turns) >= limits.max_assistant_turns:
            return ASSISTANT_TURNS
        surplus = [number >= limits.max_parallel_calls for number in range(len(calls))]
        answers = await asyncio.gather(*(self._answer(*call, tools) for call in zip(calls, surplus, strict=True)))
        records = [record for record, _ in answers]
        broken = sum(broken for _, broken in answers)
        return None if self.reply(dialogue, calls, records, broken) else NO_ROOM_FOR_REPLY

    async def take_turn(
        self, dialogue: Dialogue, generate: Generate, most: int | None = None
    ) -> tuple[str | None, list[ToolCall]]:
        """Add a turn of the model, of at most `most` tokens; return the ending of one that has no end, and its calls."""
        room = self.limits.max_response_tokens - len(dialogue.response_ids)
        asked = room if most is None else min(most, room)
        said = await generate(dialogue.ids, asked)
        if not said.token_ids:
            return UNFINISHED_TURN, []
        if len(said.token_ids) > asked:
            raise ValueError(f"the server answered {len(said.token_ids)} tokens where at most {asked} were asked for")
        dialogue.add(said.token_ids, sampled=True, logprobs=said.logprobs)
        text = self.text_of(said.token_ids)
        dialogue.turns.append(Turn(text=text, num_tokens=len(said.token_ids)))
        if said.token_ids[-1] not in self.end_tokens:
            return RESPONSE_LENGTH if len(said.token_ids) == room else UNFINISHED_TURN, []
        return None, await self._calls(text, said.token_ids)

    def reply(
        self,
        dialogue: Dialogue,
        calls: Sequence[ToolCall],
        records: Sequence[CallRecord],
        broken: int,
        asked: Sequence[Mapping[str, Any]] = (),
    ) -> bool:
        """Add the replies to the last turn's calls, then the messages `asked`; False where that leaves no room for a turn."""
        turn = dialogue.turns[-1]
        turn.calls = list(records)
        dialogue.num_markers_broken += broken
        replies = self.conversation.after_turn(
            [call.reply for call in records],
            last_token=dialogue.response_ids[-1],
            call_ids=[call.call_id and self.conversation.clean(call.call_id)[0] for call in calls],
            asked=asked,
        )
        if len(dialogue.response_ids) + len(replies) >= self.limits.max_response_tokens:
            return False
        turn.num_reply_tokens = len(replies)
        dialogue.add(replies, sampled=False)
        return True

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return tokens as text, control tokens included."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def spoken(self, text: str) -> str:
        """Return what a turn says outside its thoughts."""
        return without_thought(text, opened=self.conversation.opens_thought)

    def shown(self, text: str) -> tuple[str, bool, int]:
        """Return a reply as the model may see it, whether it was cut, and how many markers were broken up in it."""
        text, broken = self.conversation.clean(text)
        return *self._truncate(text), broken

    async def _calls(self, text: str, token_ids: Sequence[int]) -> list[ToolCall]:
        """Return the calls of a turn. A parser sees nothing of a thought, whose calls are not meant to be run."""
        spoken = self.spoken(text)
        if spoken != text:
            token_ids = self._tokenizer(spoken, add_special_tokens=False)["input_ids"]
        return await self.parser.parse(spoken, token_ids)

    async def _answer(self, call: ToolCall, surplus: bool, tools: Tools) -> tuple[CallRecord, int]:
        """Return the record of a call, and how many markers were broken up in the reply."""
        seconds, error, problem = 0.0, True, call.problem
        if surplus:
            problem = f"not run: at most {self.limits.max_parallel_calls} call(s) a turn"
        elif not problem and call.name not in tools.names:
            problem = f"there is no tool {call.name!r}; the tools are {', '.join(sorted(tools.names))}"
        if problem:
            text = f"Error: {problem}"
        else:
            reply = await tools.call(call.name, call.arguments)
            text, error, seconds = reply.text, bool(reply.error), reply.seconds
        text, truncated, broken = self.shown(text)
        record = CallRecord(
            name=call.name or UNREADABLE, arguments=call.arguments, problem=problem, reply=text, error=error,
            seconds=seconds, truncated=truncated, surplus=surplus, malformed=bool(call.problem),
            known=call.name in tools.names,
        )  # fmt: skip
        return record, broken
