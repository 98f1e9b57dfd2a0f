"""The agent loop that verl runs: our dialogues, and the tools and the checked chat template that a process's dialogues share."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop import agent_loop

from opd.agent.conversation import Conversation
from opd.agent.dialogue import Dialogue, DialogueRunner, Limits, Sampled
from opd.agent.environments import DEFAULT_TOOLSET, load_environment, tool_schemas
from opd.agent.metrics import num_turns
from opd.agent.programs import Program, hold
from opd.agent.settings import AGENT_LOOP, CASE_ID, ENDING, EPISODE_SEED, FINAL_TEXT, TOOL_SELECTION
from opd.agent.tool_pool import ToolPool
from opd.agent.tools import ToolReply
from opd.agent.verl_tools import VerlTools, call_parser
from opd.experiment.run_config import KEY, RunConfig
from opd.isolation.serving import load_named
from opd.rewards import row_of_returned

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
        return await self.pool.call(name, arguments, episode_seed=self.episode_seed, case_id=self.case_id)


class Shared:
    """The runners of a run's conversations, one for each selection of tools, and the pool of tools.

    Args:
        config: the trainer's.
        tokenizer: the student's.
        own_tools: verl's tool objects of `agent.tool_config_path`.
        has_pool: False where no tool is run.

    Raises:
        UnfitTemplate: the chat template cannot carry tool conversations exactly.
        ValueError: the spec has no `agent`, an unknown tool format or no usable database. Or its limit of replies leaves no
            room for the mark of a cut reply.
    """

    def __init__(self, config: Any, tokenizer: Any, *, own_tools: Sequence[Any] = (), has_pool: bool = True):
        ours = RunConfig.of(config)
        agent, data = ours.agent, ours.spec.data
        if agent is None:
            raise ValueError(f"agent loop {AGENT_LOOP} needs a tool database: set agent.database_dir in the spec")
        self.agent, self.tokenizer = agent, tokenizer
        self.toolset = agent.toolset or DEFAULT_TOOLSET
        self.pool: ToolPool | None = None
        self.program: Program | None = None
        if agent.program is not None:
            schemas, self.program = [], load_named(agent.program, "_opd_program")
        elif agent.tool_config_path is not None:
            schemas = [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in own_tools]
        else:
            schemas = tool_schemas(self.toolset)
            if has_pool:
                self.pool = ToolPool(
                    ours.database_dir or "",
                    num_processes=agent.num_tool_processes,
                    timeout_s=agent.call_timeout_s,
                    toolset=self.toolset,
                )
        self._schemas = {schema["function"]["name"]: schema for schema in schemas}
        self._template_kwargs = config.data.get("apply_chat_template_kwargs")
        self._limits = Limits(
            max_prompt_tokens=data.max_prompt_length,
            max_response_tokens=data.max_response_length,
            max_assistant_turns=agent.max_assistant_turns,
            max_parallel_calls=agent.max_parallel_calls,
        )
        self._runners: dict[tuple[str, ...], DialogueRunner] = {}
        self._truncate = partial(truncate_reply, tokenizer=tokenizer, max_tokens=agent.max_tool_response_length)
        self._truncate("x " * agent.max_tool_response_length * 2)
        self._runner_of_text = lru_cache(maxsize=64)(lambda schemas: self._new_runner(json.loads(schemas)))
        self._is_verified = False
        if self.program is None:
            self._verified(self.runner({}))

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
            self._runners[names] = self._new_runner([self._schemas[name] for name in names])
        return self._runners[names]

    def _new_runner(self, schemas: Sequence[Mapping[str, Any]]) -> DialogueRunner:
        return DialogueRunner(
            tokenizer=self.tokenizer,
            conversation=Conversation(
                self.tokenizer,
                tools=schemas,
                template_kwargs=self._template_kwargs,
                max_parallel_calls=self._limits.max_parallel_calls,
            ),
            parser=call_parser(self.agent.tool_format, self.tokenizer, schemas),
            truncate=self._truncate,
            limits=self._limits,
        )

    def runner_with(self, schemas: Sequence[Mapping[str, Any]]) -> DialogueRunner:
        """Return the runner of a conversation with a program's tools; the first one checks the template."""
        runner = self._runner_of_text(json.dumps(schemas))
        return self._verified(runner) if schemas else runner

    def _verified(self, runner: DialogueRunner) -> DialogueRunner:
        if not self._is_verified:
            runner.conversation.verify(sorted(runner.end_tokens))
            self._is_verified = True
        return runner

    def tools(self, extra_info: Mapping[str, Any]) -> EpisodeTools:
        """Return the pool's tools in a row's episode and case.

        Raises:
            ValueError: the row selects a tool that there is not, or names no case and the tools need one.
        """
        assert self.pool is not None  # the loop gives conversations with a user's own tools these
        environment = load_environment(self.toolset)
        seed, case_id = extra_info.get(EPISODE_SEED), extra_info.get(CASE_ID)
        if environment.needs_case and case_id is None:
            raise ValueError(
                f"extra_info.{CASE_ID} is not set: agent.toolset = {self.toolset} has a database for each task; "
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
        if not dialogue.turns or (last := dialogue.turns[-1]).calls:
            return ""
        end = len(dialogue.response_ids) - last.num_reply_tokens  # a program's message may have no answer
        text: str = self.tokenizer.decode(dialogue.response_ids[end - last.num_tokens : end], skip_special_tokens=True)
        return text


_SHARED: dict[str, Shared] = {}


def shared(config: Any, tokenizer: Any, own_tools: Sequence[Any] = ()) -> Shared:
    """Return what the conversations of this process share; the first call makes it, as `Shared`."""
    if config[KEY] not in _SHARED:
        _SHARED[config[KEY]] = Shared(config, tokenizer, own_tools=own_tools)
    return _SHARED[config[KEY]]


@agent_loop.register(AGENT_LOOP)
class ToolDialogueLoop(agent_loop.AgentLoopBase):
    """Conversations with tools, every token accounted for. `dialogue` holds the last one."""

    def __init__(self, *args: Any, tools: agent_loop.ToolListWrap | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._own_tools = {tool.name: tool for tool in (tools.tools if tools else [])}
        self._shared = shared(self.config, self.tokenizer, list(self._own_tools.values()))
        self.dialogue: Dialogue | None = None

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> agent_loop.AgentLoopOutput:
        """Answer one row of the data set: `raw_prompt`, and `extra_info` for the episode and its tools."""
        program = self._shared.program
        extra: Mapping[str, Any] = {} if program else row.get("extra_info") or {}
        runner = self._shared.runner(extra)
        stops = [*(sampling_params.get("stop_token_ids") or []), *runner.parser.stop_token_ids]
        params = sampling_params | ({"stop_token_ids": stops} if stops else {})
        request_id = uuid4().hex

        async def generate(ids: Sequence[int], max_tokens: int) -> Sampled:
            asked = params | {"max_tokens": max_tokens}
            out = await self.server_manager.generate(request_id=request_id, prompt_ids=list(ids), sampling_params=asked)
            return Sampled(token_ids=out.token_ids, logprobs=out.log_probs or None)

        own: VerlTools | None = None
        returned = None
        if self._own_tools and not program:
            offered = {name: self._own_tools[name] for name in self._shared.tool_names(extra)}
            own = VerlTools(offered, row.get("tools_kwargs") or {}, self._shared.agent.call_timeout_s)
        try:
            if program:
                idle_s = self._shared.agent.call_timeout_s
                dialogue, returned = await hold(
                    program, row, generate=generate, runner_of=self._shared.runner_with, idle_s=idle_s
                )
            else:
                tools = own or self._shared.tools(extra)
                dialogue = await runner.run(row["raw_prompt"], generate=generate, tools=tools)
        finally:
            if own is not None:
                await own.release()
        self.dialogue = dialogue
        found = None if returned is None else row_of_returned(returned)
        return agent_loop.AgentLoopOutput(
            prompt_ids=dialogue.prompt_ids,
            response_ids=dialogue.response_ids,
            response_mask=dialogue.mask,
            response_logprobs=dialogue.logprobs,
            num_turns=num_turns(dialogue),
            metrics=agent_loop.AgentLoopMetrics(),
            reward_score=found and found["score"],
            # The reward function gets these inside `extra_info`.
            extra_fields=({} if found is None else {"reward_extra_info": found})
            | {
                FINAL_TEXT: self._shared.final_text(dialogue),
                ENDING: dialogue.ending,
            },
        )
