"""The environment's limits in the evidence: a question, one call, one answer, with room for a mistake or two."""

from __future__ import annotations

from pathlib import Path

from opd.agent.dialogue import Limits
from opd.agent.environments import DEFAULT_TOOLSET
from opd.agent.settings import AgentSettings

MAX_PROMPT_TOKENS = 128
MAX_RESPONSE_TOKENS = 192
MAX_ASSISTANT_TURNS = 3
MAX_REPLY_TOKENS = 64


def settings(database: Path) -> AgentSettings:
    """As the evidence's experiment has them."""
    return AgentSettings(
        limits=Limits(
            max_prompt_tokens=MAX_PROMPT_TOKENS,
            max_response_tokens=MAX_RESPONSE_TOKENS,
            max_assistant_turns=MAX_ASSISTANT_TURNS,
        ),
        tool_format="hermes",
        max_reply_tokens=MAX_REPLY_TOKENS,
        database_dir=str(database),
        call_timeout_s=10.0,
        num_tool_processes=2,
        toolset=DEFAULT_TOOLSET,
    )
