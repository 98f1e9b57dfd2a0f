"""The agent loop that verl runs: our dialogue in verl's registry, with one environment a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    ToolListWrap,
    register,
)

from opd.agent.dialogue import Dialogue, Sampled
from opd.agent.environments import tool_schemas
from opd.agent.metrics import num_turns
from opd.agent.settings import AGENT_LOOP, ENDING, FINAL_TEXT, AgentSettings
from opd.agent.shared import Shared
from opd.agent.tool_pool import ToolPool
from opd.agent.verl_tools import VerlTools

_SHARED: dict[AgentSettings, Shared] = {}


def shared(config: Any, tokenizer: Any, own_tools: Sequence[Any] = ()) -> Shared:
    """Return what the conversations of this process share; the first call makes it and checks the chat template.

    Args:
        own_tools: verl's tool objects of `agent.tool_config_path`.

    Raises:
        UnfitTemplate: the model's chat template cannot carry tool conversations.
        ValueError: an unknown tool format, or no usable database.
    """
    settings = AgentSettings.of(config)
    if settings not in _SHARED:
        if settings.uses_own_tools:
            pool = None
            schemas = [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in own_tools]
        else:
            pool, schemas = pool_of(settings), tool_schemas(settings.toolset)
        _SHARED[settings] = Shared(settings, tokenizer, schemas=schemas, pool=pool)
    return _SHARED[settings]


def pool_of(settings: AgentSettings) -> ToolPool:
    """Return the processes of the environment's tools."""
    return ToolPool(
        settings.database_dir,
        num_processes=settings.num_tool_processes,
        timeout_s=settings.call_timeout_s,
        toolset=settings.toolset,
    )


@register(AGENT_LOOP)
class ToolDialogueLoop(AgentLoopBase):
    """Conversations with tools, every token accounted for. `dialogue` holds the last one."""

    def __init__(self, *args: Any, tools: ToolListWrap | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._own_tools = {tool.name: tool for tool in (tools.tools if tools else [])}
        self._shared = shared(self.config, self.tokenizer, list(self._own_tools.values()))
        self.dialogue: Dialogue | None = None

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Answer one row of the data set: `raw_prompt`, and `extra_info` for the episode and its tools."""
        extra: Mapping[str, Any] = row.get("extra_info") or {}
        runner = self._shared.runner(extra)
        stops = [*(sampling_params.get("stop_token_ids") or []), *runner.parser.stop_token_ids]
        params = sampling_params | ({"stop_token_ids": stops} if stops else {})
        request_id, served = uuid4().hex, list[Any]()

        async def generate(ids: Sequence[int], max_tokens: int) -> Sampled:
            asked = params | {"max_tokens": max_tokens}
            out = await self.server_manager.generate(request_id=request_id, prompt_ids=list(ids), sampling_params=asked)
            served.append(out)
            return Sampled(token_ids=out.token_ids, logprobs=out.log_probs or None)

        if not self._own_tools:
            tools = self._shared.tools(extra)
            self.dialogue = await runner.run(row["raw_prompt"], generate=generate, tools=tools)
            return self._output(self.dialogue, served)
        offered = {name: self._own_tools[name] for name in self._shared.tool_names(extra)}
        own = VerlTools(offered, row.get("tools_kwargs") or {}, self._shared.settings.call_timeout_s)
        try:
            self.dialogue = await runner.run(row["raw_prompt"], generate=generate, tools=own)
        finally:
            await own.release()
        return self._output(self.dialogue, served)

    def _output(self, dialogue: Dialogue, served: Sequence[Any]) -> AgentLoopOutput:
        """Return what verl's loops return; `served` are the server's outputs."""
        return AgentLoopOutput(
            prompt_ids=dialogue.prompt_ids,
            response_ids=dialogue.response_ids,
            response_mask=dialogue.mask,
            response_logprobs=dialogue.logprobs,
            num_turns=num_turns(dialogue),
            metrics=AgentLoopMetrics(),
            # The reward function gets these inside `extra_info`.
            extra_fields={
                FINAL_TEXT: self._shared.final_text(dialogue),
                ENDING: dialogue.ending,
                "min_global_steps": served[0].extra_fields.get("min_global_steps"),
                "max_global_steps": served[-1].extra_fields.get("max_global_steps"),
            },
        )
