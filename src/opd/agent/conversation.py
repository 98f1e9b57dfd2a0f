"""Token ids of a conversation in pieces: the prompt, and what the chat template writes between two turns of the model.

Sampled ids are never tokenised again. Only the template's own text is tokenised: end of turn, tool replies, the next turn's
header. `verify` holds that the pieces are what the template
writes for the whole conversation.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from opd.agent.parsing import THOUGHT_END, THOUGHT_START
from opd.data.chat_template import UnfitTemplate, render
from opd.data.turn_ends import written_end
from opd.text import storable

_ASKED, _SAID, _CALLED = "opd-asked", "opd-said", "opd_called_"
_PROBES: tuple[tuple[str, ...], ...] = (("opd-reply-1",), ("opd-reply-2", "二百公里 200 km"), ('{"opd": 3}\n4',))
"""Replies of three turns, by which a template is judged. A turn of two is what a model may make of any limit: calls beyond
`max_parallel_calls` are answered, not run."""
_MARKUP = re.compile(r"[<\[].+[>\]]", re.DOTALL)
_QUESTION = {"role": "user", "content": _ASKED}


class Conversation:
    """The template of one model with one set of tools.

    Args:
        tokenizer: with its chat template.
        tools: descriptions of the tools that the model is offered.
        template_kwargs: what the template reads besides (`enable_thinking`).
        max_parallel_calls: tool calls of one turn that are run. No assistant message is written with more: templates
            may refuse several calls in a turn (Llama 3's do). The replies to calls beyond follow the others.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        max_parallel_calls: int,
    ):
        self._tokenizer = tokenizer
        self._tools = list(tools) if tools else None
        self._max_calls = max_parallel_calls
        self._kwargs = dict(template_kwargs or {})
        # Control tokens, or markup in any text. Longest first: a marker that contains another is broken as a whole.
        tokens = tokenizer.added_tokens_decoder.values()
        texts = [one.content for one in tokens if one.special or _MARKUP.fullmatch(one.content)]
        self._markers = sorted(texts, key=len, reverse=True)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return ids of the messages and the header of the model's first turn."""
        return self._encode(self._render(messages))

    def after_turn(
        self,
        replies: Sequence[str],
        *,
        last_token: int,
        call_ids: Sequence[str | None] = (),
        asked: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return ids of the text between a turn that ended with `last_token` and the next one: the replies, then messages.

        Raises:
            UnfitTemplate: the template writes no `last_token` after such a turn.
        """
        text = self._render([_QUESTION, *self._turn(0, replies, call_ids), *asked])
        if lost := [one["content"] for one in asked if one["content"].strip() not in text]:
            raise self._unfit(f"the message {lost[0]!r} is not in the text it writes")
        return self._encode(text[self._end_of_turn(text, 0, len(replies), last_token) :])

    @cached_property
    def opens_thought(self) -> bool:
        """True if the header of the model's turn begins its thought (DeepSeek-R1's, Qwen3-Thinking's do)."""
        header = self._render([_QUESTION]).rpartition(_ASKED)[2]
        return header.rfind(THOUGHT_START) > header.rfind(THOUGHT_END)

    @cached_property
    def _written_end(self) -> str:
        written = written_end(self._tokenizer, **self._kwargs)
        return "" if written is None else str(self._tokenizer.decode([written], skip_special_tokens=False))

    def clean(self, text: str) -> tuple[str, int]:
        """Return a reply in which nothing reads as one of the tokenizer's own markers, and how many were broken up.

        A marker in a database entry, or echoed in an error, would otherwise end the turn or open another one. What no
        tokenizer takes (a lone surrogate out of a tool of the user's own) is replaced.
        """
        found, text = 0, storable(text)
        for marker in self._markers:
            if marker in text:
                found += text.count(marker)
                text = text.replace(marker, f"{marker[0]} {marker[1:]}")
        return text, found

    def verify(self, end_tokens: Sequence[int]) -> None:
        """Compare pieces with the whole for a conversation of several turns; `end_tokens` may end a turn.

        Raises:
            UnfitTemplate: they differ.
        """
        for token in end_tokens:
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            if self._encode(text) != [token]:
                raise self._unfit(f"the end-of-turn token {text!r} is not one token of the tokenizer")
            self._verify_end(token)

    def _verify_end(self, last_token: int) -> None:
        messages: list[dict[str, Any]] = [_QUESTION]
        for k, replies in enumerate(_PROBES):
            messages += self._turn(k, replies, ())
        whole = self._render(messages)
        for k, replies in enumerate(_PROBES):
            end = self._end_of_turn(whole, k, len(replies), last_token)
            text = self._render([_QUESTION, *self._turn(k, replies, ())])
            piece = text[self._end_of_turn(text, k, len(replies), last_token) :]
            for reply in replies:  # as it is, or as the inside of a JSON string, which Llama 3's templates write
                if reply not in piece and json.dumps(reply, ensure_ascii=False)[1:-1] not in piece:
                    raise self._unfit(f"a tool reply {reply!r} is not in the text it writes")
            rest = whole[end:] if k + 1 == len(_PROBES) else whole[end : _start_of_turn(whole, k + 1)]
            # A past turn may lack the empty thought that a header begins with, or carry one that a header lacks.
            if not (piece.startswith(rest) or rest.startswith(piece)):
                raise self._unfit(f"after turn {k + 1} it writes {piece!r}, but {rest!r} once more turns follow")
            if self._encode(whole) != self._encode(whole[:end]) + self._encode(whole[end:]):
                raise self._unfit(f"tokens run across the end of turn {k + 1}")

    def _turn(self, turn: int, replies: Sequence[str], call_ids: Sequence[str | None]) -> list[dict[str, Any]]:
        """Return an assistant message with the calls that were run, then the replies to these and to those that were not."""
        ids = [given or call_id(turn, i) for i, given in enumerate(call_ids or [None] * len(replies))]
        calls = [
            {"id": id_, "type": "function", "function": {"name": f"{_CALLED}{turn}_{i}", "arguments": {}}}
            for i, id_ in enumerate(ids[: self._max_calls])
        ]
        said = {"role": "assistant", "content": f"{_SAID}-{turn}"} | ({"tool_calls": calls} if calls else {})
        return [
            said,
            *({"role": "tool", "content": r, "tool_call_id": id_} for id_, r in zip(ids, replies, strict=True)),
        ]

    def _end_of_turn(self, text: str, turn: int, num_replies: int, last_token: int) -> int:
        """Return where in a rendered text the model's turn is over: after `last_token`'s text."""
        marker = self._tokenizer.decode([last_token], skip_special_tokens=False)
        start = text.find(f"{_CALLED}{turn}_{min(num_replies, self._max_calls) - 1}")
        if start < 0:
            start = text.find(f"{_SAID}-{turn}")
        if start < 0:
            raise self._unfit("it writes neither the content nor the tool calls of an assistant turn")
        end = text.find(marker, start)
        if end < 0 and self._written_end:  # the model may also end a turn by a token that the template never writes
            marker = self._written_end
            end = text.find(marker, start)
        if end < 0:
            raise self._unfit(f"it does not end a turn by {marker!r}, as the model did")
        return end + len(marker)

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return render(self._tokenizer, messages, tools=self._tools, **self._kwargs)

    def _unfit(self, why: str) -> UnfitTemplate:
        need = (
            "conversations with tools need a template that writes a turn the same, however the conversation continues"
        )
        return UnfitTemplate.of(self._tokenizer, f"{why}; {need}", has_tools=True)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def call_id(turn: int, call: int) -> str:
    """Return an id for a call whose syntax has none: nine letters and digits, the only form that Mistral's templates take."""
    return f"opd{turn:03d}{call:03d}"


def _start_of_turn(text: str, turn: int) -> int:
    """Return where the first thing that turn says begins, in a rendered text."""
    places = [place for mark in (f"{_SAID}-{turn}", f"{_CALLED}{turn}_0") if (place := text.find(mark)) >= 0]
    return min(places) if places else len(text)
