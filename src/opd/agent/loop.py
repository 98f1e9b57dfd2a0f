"""The agent loop that verl runs: our dialogue behind verl's registry, with one environment a process."""

from __future__ import annotations

import time
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
from opd.agent.metrics import num_turns
from opd.agent.settings import AGENT_LOOP, ENDING, FINAL_TEXT, TOOL_STATE, AgentSettings
from opd.agent.shared import Shared
from opd.agent.verl_tools import VerlTools, call_parser

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
        schemas = [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in own_tools]
        _SHARED[settings] = Shared(
            settings,
            tokenizer,
            schemas=schemas if settings.uses_own_tools else None,
            make_parser=lambda found: call_parser(settings.tool_format, tokenizer, found),
        )
    return _SHARED[settings]


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
        clock = _Clock()
        extra: Mapping[str, Any] = row.get("extra_info") or {}
        runner = self._shared.runner(extra)
        stops = [*(sampling_params.get("stop_token_ids") or []), *runner.parser.stop_token_ids]
        params = sampling_params | ({"stop_token_ids": stops} if stops else {})
        request_id, steps = uuid4().hex, _Steps()

        async def generate(ids: Sequence[int], max_tokens: int) -> Sampled:
            with clock.generating():
                out = await self.server_manager.generate(
                    request_id=request_id, prompt_ids=list(ids), sampling_params=params | {"max_tokens": max_tokens}
                )
            steps.see(out)
            return Sampled(token_ids=out.token_ids, logprobs=out.log_probs or None)

        state: dict[str, str | None] = {}
        if self._own_tools:
            own = VerlTools(
                {name: self._own_tools[name] for name in self._shared.tool_names(extra)},
                row.get("tools_kwargs") or {},
                self._shared.settings.call_timeout_s,
            )
            try:
                self.dialogue = await runner.run(row["raw_prompt"], generate=generate, tools=own)
            finally:
                await own.release()
        else:
            tools = self._shared.tools(extra)
            self.dialogue = await runner.run(row["raw_prompt"], generate=generate, tools=tools)
            state = {TOOL_STATE: tools.state} if tools.keeps_state else {}
        return self._output(self.dialogue, clock, steps, state)

    def _output(
        self, dialogue: Dialogue, clock: _Clock, steps: _Steps, state: Mapping[str, str | None]
    ) -> AgentLoopOutput:
        tool_s = sum(call.seconds for turn in dialogue.turns for call in turn.calls)
        return AgentLoopOutput(
            prompt_ids=dialogue.prompt_ids,
            response_ids=dialogue.response_ids,
            response_mask=dialogue.mask,
            response_logprobs=dialogue.logprobs,
            num_turns=num_turns(dialogue),
            metrics=AgentLoopMetrics(
                generate_sequences=clock.generate_s, tool_calls=tool_s, num_preempted=steps.num_preempted
            ),
            # verl hands these to the reward function inside `extra_info`.
            extra_fields={
                FINAL_TEXT: self._shared.final_text(dialogue),
                ENDING: dialogue.ending,
                "min_global_steps": steps.first,
                "max_global_steps": steps.last,
                **state,
            },
        )


class _Clock:
    """Seconds spent waiting for the model."""

    def __init__(self) -> None:
        self.generate_s = 0.0
        self._started = 0.0

    def generating(self) -> _Clock:
        return self

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.generate_s += time.perf_counter() - self._started


class _Steps:
    """Which weights answered, and how often the server put a request back."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None
        self.num_preempted = 0

    def see(self, output: Any) -> None:
        first = output.extra_fields.get("min_global_steps")
        self.first = first if self.first is None else self.first
        self.last = output.extra_fields.get("max_global_steps")
        self.num_preempted += output.num_preempted or 0
