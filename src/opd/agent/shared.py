"""Shared parts of the conversations of one process: the tools and their descriptions, and the checked chat template."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from opd.agent.conversation import Conversation
from opd.agent.dialogue import Dialogue, DialogueRunner
from opd.agent.environments import load_environment
from opd.agent.settings import CASE_ID, EPISODE_SEED, TOOL_SELECTION, AgentSettings
from opd.agent.tool_pool import ToolPool
from opd.agent.tools import ToolReply
from opd.agent.verl_tools import call_parser

TRUNCATION_MARK = " …[truncated]"
_MAX_CHARS_PER_TOKEN = 256
"""No vocabulary has a longer token: text beyond this bound is dropped before it is tokenised."""


def truncate_reply(text: str, *, tokenizer: Any, max_tokens: int) -> tuple[str, bool]:
    """Return the text, or its longest beginning that with the mark has at most `max_tokens` tokens, and whether it was cut.

    The cut is between two tokens of the text as it is tokenised by itself, and between two characters.

    Args:
        tokenizer: of transformers, a fast one (it tells which characters a token covers).

    Raises:
        ValueError: a limit too small for the mark.
    """

    def encoded(of: str) -> Any:
        return tokenizer(of, add_special_tokens=False, return_offsets_mapping=True)

    bounded = text[: _MAX_CHARS_PER_TOKEN * (max_tokens + 1)]
    offsets = encoded(bounded)["offset_mapping"]
    if len(offsets) <= max_tokens and len(bounded) == len(text):
        return text, False
    for num_kept in range(min(max_tokens, len(offsets) - 1), -1, -1):
        end = offsets[num_kept - 1][1] if num_kept else 0
        if offsets[num_kept][0] < end:  # the next token is another part of the same character
            continue
        shortened = bounded[:end] + TRUNCATION_MARK
        if len(encoded(shortened)["input_ids"]) <= max_tokens:  # the seam may tokenise differently
            return shortened, True
    raise ValueError(
        f"agent.max_tool_response_length = {max_tokens}: the mark {TRUNCATION_MARK!r} of a cut reply does not fit; raise it"
    )


@dataclass(kw_only=True)
class EpisodeTools:
    """The pool's tools as one episode sees them."""

    pool: ToolPool
    names: Collection[str]
    episode_seed: int | None
    case_id: str | None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Run one call."""
        return await self.pool.call(name, arguments, episode_seed=self.episode_seed, case_id=self.case_id)


class Shared:
    """The runners of a run's conversations, one for each selection of tools, and the pool of tools.

    Args:
        tokenizer: the student's.
        schemas: descriptions of the tools.
        pool: of the environment's tools. None means that there is none, or tools of the user's own.

    Raises:
        UnfitTemplate: the chat template cannot carry tool conversations exactly.
        ValueError: an unknown tool format, or a limit of replies that leaves no room for the mark of a cut reply.
    """

    def __init__(
        self,
        settings: AgentSettings,
        tokenizer: Any,
        *,
        schemas: Sequence[Mapping[str, Any]],
        pool: ToolPool | None = None,
    ):
        self.settings, self.pool = settings, pool
        self.tokenizer = tokenizer
        self._schemas = {schema["function"]["name"]: schema for schema in schemas}
        self._runners: dict[tuple[str, ...], DialogueRunner] = {}
        self._truncate = partial(truncate_reply, tokenizer=tokenizer, max_tokens=settings.max_reply_tokens)
        self._truncate("x " * settings.max_reply_tokens * 2)
        runner = self.runner({})
        runner.conversation.verify(sorted(runner.end_tokens))

    def tool_names(self, extra_info: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the tools that a row is offered, in their fixed order.

        Raises:
            ValueError: the row selects a tool that there is not.
        """
        selection = extra_info.get(TOOL_SELECTION)
        if selection is None:
            return tuple(self._schemas)
        unknown = sorted(set(selection) - set(self._schemas))
        if unknown:
            raise ValueError(
                f"extra_info.{TOOL_SELECTION} names {', '.join(unknown)}; the tools are {', '.join(self._schemas)}"
            )
        return tuple(name for name in self._schemas if name in set(selection))

    def runner(self, extra_info: Mapping[str, Any]) -> DialogueRunner:
        """Return the runner for a row's tools."""
        names = self.tool_names(extra_info)
        if names not in self._runners:
            schemas = [self._schemas[name] for name in names]
            self._runners[names] = DialogueRunner(
                tokenizer=self.tokenizer,
                conversation=Conversation(
                    self.tokenizer,
                    tools=schemas,
                    template_kwargs=dict(self.settings.chat_template_kwargs),
                    max_parallel_calls=self.settings.limits.max_parallel_calls,
                ),
                parser=call_parser(self.settings.tool_format, self.tokenizer, schemas),
                truncate=self._truncate,
                limits=self.settings.limits,
            )
        return self._runners[names]

    def tools(self, extra_info: Mapping[str, Any]) -> EpisodeTools:
        """Return the pool's tools in a row's episode and case.

        Raises:
            ValueError: the row selects a tool that there is not, or names no case and the tools need one.
        """
        assert self.pool is not None  # the loop gives conversations with a user's own tools these
        environment = load_environment(self.settings.toolset)
        seed, case_id = extra_info.get(EPISODE_SEED), extra_info.get(CASE_ID)
        if environment.needs_case and case_id is None:
            raise ValueError(
                f"extra_info.{CASE_ID} is not set: agent.toolset = {self.settings.toolset} has a database for each task; "
                f"give data of {environment.prepare or 'its own preparation'}"
            )
        return EpisodeTools(
            pool=self.pool,
            names=self.tool_names(extra_info),
            episode_seed=None if seed is None else int(seed),
            case_id=case_id if environment.needs_case else None,
        )

    def final_text(self, dialogue: Dialogue) -> str:
        """Return the model's last turn as text without control tokens; empty if it still asked for tools."""
        if not dialogue.turns or dialogue.turns[-1].calls:
            return ""
        said = dialogue.response_ids[len(dialogue.response_ids) - dialogue.turns[-1].num_tokens :]
        text: str = self.tokenizer.decode(said, skip_special_tokens=True)
        return text
