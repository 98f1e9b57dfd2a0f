"""Settings of conversations with tools, from the trainer's resolved config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opd.agent.dialogue import Limits
from opd.agent.environments import DEFAULT_TOOLSET
from opd.experiment.run_config import RunConfig

AGENT_LOOP = "opd_tools"
"""Name under which `opd.agent.loop` registers with verl."""
SINGLE_TURN = "single_turn_agent"
"""verl's agent loop of one answer a prompt."""
LOOP_COLUMN = "agent_name"
"""verl's column of the data that names a row's agent loop."""
TOOL_SELECTION = "tool_selection"
"""verl's key in a row's `extra_info`: the tools that this row is offered; all where it is absent."""
EPISODE_SEED = "episode_seed"
"""Key of `extra_info` for the row's view of the database (`in_episode`); None: as stored."""
CASE_ID = "case_id"
"""Key of `extra_info` for the row's part of a database that has one for each task."""
FINAL_TEXT = "final_text"
"""Key of `extra_info` under which an agent loop may hand over the text of the model's last turn alone."""
ENDING = "ending"
"""Key of `extra_info` for why the conversation ended (`opd.agent.dialogue.ENDINGS`)."""


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The agent's part of a run's config; equal settings share one pool of tool processes."""

    limits: Limits
    tool_format: str
    max_reply_tokens: int
    database_dir: str
    call_timeout_s: float
    num_tool_processes: int
    toolset: str
    """Environment; see `opd.agent.environments.load_environment`."""
    uses_own_tools: bool = False
    """`agent.tool_config_path` names tools of the user's own, in verl's format."""
    chat_template_kwargs: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, config: Any) -> AgentSettings:
        """Read the run's spec in the trainer's config.

        Raises:
            ValueError: the spec has no `agent`.
        """
        ours = RunConfig.of(config)
        agent, data = ours.agent, ours.spec.data
        if agent is None:
            raise ValueError(f"agent loop {AGENT_LOOP} needs a tool database: set agent.database_dir in the spec")
        return cls(
            limits=Limits(
                max_prompt_tokens=data.max_prompt_length,
                max_response_tokens=data.max_response_length,
                max_assistant_turns=agent.max_assistant_turns,
                max_parallel_calls=agent.max_parallel_calls,
            ),
            tool_format=agent.tool_format,
            max_reply_tokens=agent.max_tool_response_length,
            database_dir=str(ours.database_dir),
            call_timeout_s=agent.call_timeout_s,
            num_tool_processes=agent.num_tool_processes,
            toolset=agent.toolset or DEFAULT_TOOLSET,
            uses_own_tools=agent.tool_config_path is not None,
            chat_template_kwargs=tuple(sorted((config.data.get("apply_chat_template_kwargs") or {}).items())),
        )
