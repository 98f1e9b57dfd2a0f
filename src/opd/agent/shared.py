"""Shared parts of the conversations of one process: the tool processes, the tools' descriptions, the checked chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from opd.agent.conversation import Conversation
from opd.agent.dialogue import Dialogue, DialogueRunner, Reply
from opd.agent.environments import load_environment, tool_schemas
from opd.agent.parsing import CallParser
from opd.agent.settings import CASE_ID, EPISODE_SEED, TOOL_SELECTION, AgentSettings
from opd.agent.tool_pool import ToolPool

TRUNCATION_MARK = " …[truncated]"
_MAX_CHARS_PER_TOKEN = 256
"""No vocabulary has a longer token: text beyond this bound is dropped before it is tokenised."""


def truncate_reply(text: str, *, tokenizer: Any, max_tokens: int) -> tuple[str, bool]:
    """Return the text, or its longest beginning that with the mark has at most `max_tokens` tokens.

    The cut is between two tokens of the text as it is tokenised by itself, and between two characters. The result,
    tokenised again by itself, has at most `max_tokens` tokens.

    Args:
        text: the reply.
        tokenizer: of transformers, a fast one (it tells which characters a token covers).
        max_tokens: the limit, mark included.

    Returns:
        The text and whether it was shortened.

    Raises:
        ValueError: a limit too small for the mark, or a tokenizer that is not a fast one.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"tokenizer = {type(tokenizer).__name__}: must be a fast one; it tells where a token ends")
    mark_tokens = len(_encode(tokenizer, TRUNCATION_MARK)["input_ids"])
    if max_tokens <= mark_tokens:
        raise ValueError(
            f"max_tokens = {max_tokens}: must be more than {mark_tokens}, the tokens of the mark {TRUNCATION_MARK!r}; "
            "raise agent.max_tool_response_length"
        )
    bounded = text[: _MAX_CHARS_PER_TOKEN * (max_tokens + 1)]
    encoded = _encode(tokenizer, bounded, offsets=True)
    if len(encoded["input_ids"]) <= max_tokens and len(bounded) == len(text):
        return text, False
    offsets = encoded["offset_mapping"]
    for num_kept in range(min(max_tokens - mark_tokens, len(offsets) - 1), -1, -1):
        end = offsets[num_kept - 1][1] if num_kept else 0
        if offsets[num_kept][0] < end:  # the next token is another part of the same character
            continue
        shortened = bounded[:end] + TRUNCATION_MARK
        if len(_encode(tokenizer, shortened)["input_ids"]) <= max_tokens:  # the seam may tokenise differently
            return shortened, True
    raise ValueError(f"max_tokens = {max_tokens}: the mark alone does not fit; raise agent.max_tool_response_length")


def _encode(tokenizer: Any, text: str, *, offsets: bool = False) -> Any:
    return tokenizer(text, add_special_tokens=False, return_offsets_mapping=offsets)


Schema = Mapping[str, Any]


@dataclass(kw_only=True)
class EpisodeTools:
    """The pool's tools as one episode sees them."""

    pool: ToolPool
    names: Collection[str]
    episode_seed: int | None
    case_id: str | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        """Run one call."""
        return await self.pool.call(name, arguments, episode_seed=self.episode_seed, case_id=self.case_id)


class Runners:
    """The runners of a run's conversations, one for each selection of tools; made, and the template checked, without a process.

    Args:
        settings: what the run says. tokenizer: the student's.
        schemas: descriptions of the tools.
        make_parser: from the tools' descriptions to the parser of `settings.tool_format`.

    Raises:
        UnfitTemplate: the chat template cannot carry tool conversations exactly.
    """

    def __init__(
        self,
        settings: AgentSettings,
        tokenizer: Any,
        *,
        schemas: Sequence[Schema],
        make_parser: Callable[[Sequence[Schema]], CallParser],
    ):
        self.settings = settings
        self._tokenizer = tokenizer
        self._make_parser = make_parser
        self._schemas = {schema["function"]["name"]: schema for schema in schemas}
        self._runners: dict[tuple[str, ...], DialogueRunner] = {}
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
                tokenizer=self._tokenizer,
                conversation=Conversation(
                    self._tokenizer,
                    tools=schemas,
                    template_kwargs=dict(self.settings.chat_template_kwargs),
                    max_parallel_calls=self.settings.limits.max_parallel_calls,
                ),
                parser=self._make_parser(schemas),
                truncate=partial(truncate_reply, tokenizer=self._tokenizer, max_tokens=self.settings.max_reply_tokens),
                limits=self.settings.limits,
            )
        return self._runners[names]


class Shared(Runners):
    """The runners of a run, and the tools they call.

    Args:
        schemas: descriptions of tools that are not ours (`agent.tool_config_path`). None means ours, in a pool of processes.

    Raises:
        UnfitTemplate: the chat template cannot carry tool conversations exactly.
        ManifestError, ImportError: see `ToolPool`.
        ValueError: the reply limit leaves no room for the mark that says a reply was cut.
    """

    def __init__(
        self,
        settings: AgentSettings,
        tokenizer: Any,
        *,
        schemas: Sequence[Schema] | None,
        make_parser: Callable[[Sequence[Schema]], CallParser],
    ):
        found = tool_schemas(settings.toolset) if schemas is None else schemas
        super().__init__(settings, tokenizer, schemas=found, make_parser=make_parser)
        self._environment = load_environment(settings.toolset) if schemas is None else None
        truncate_reply("", tokenizer=tokenizer, max_tokens=settings.max_reply_tokens)
        self._pool = (
            ToolPool(
                settings.database_dir, num_processes=settings.num_tool_processes, timeout_s=settings.call_timeout_s,
                toolset=settings.toolset,
            )
            if schemas is None
            else None
        )  # fmt: skip

    def tools(self, extra_info: Mapping[str, Any]) -> EpisodeTools:
        """Return our tools in a row's episode and case.

        Raises:
            ValueError: the row selects a tool that there is not, or names no case and the tools need one.
        """
        if self._pool is None or self._environment is None:
            raise ValueError("this run has tools of its own (agent.tool_config_path): there is no pool")
        seed = extra_info.get(EPISODE_SEED)
        case_id = extra_info.get(CASE_ID) if self._environment.needs_case else None
        if self._environment.needs_case and case_id is None:
            raise ValueError(
                f"extra_info.{CASE_ID} is not set: agent.toolset = {self.settings.toolset} has a database for each task; "
                f"give data of {self._environment.prepare or 'its own preparation'}"
            )
        return EpisodeTools(
            pool=self._pool,
            names=self.tool_names(extra_info),
            episode_seed=None if seed is None else int(seed),
            case_id=case_id,
        )

    def final_text(self, dialogue: Dialogue) -> str:
        """Return what the model said last, as text without control tokens; empty if its last turn still asked for tools."""
        if not dialogue.turns or dialogue.turns[-1].calls:
            return ""
        last = dialogue.turns[-1].num_tokens
        text: str = self._tokenizer.decode(
            dialogue.response_ids[len(dialogue.response_ids) - last :], skip_special_tokens=True
        )
        return text

    def text(self, dialogue: Dialogue) -> str:
        """Return the whole response as verl hands it to a reward function."""
        text: str = self._tokenizer.decode(dialogue.response_ids, skip_special_tokens=True)
        return text

    def close(self) -> None:
        """End the tool processes."""
        if self._pool is not None:
            self._pool.close()
