"""The check of the student's chat template before anything is started."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from opd.agent.environment import Runners
from opd.agent.settings import AGENT_LOOP, AgentSettings
from opd.agent.toolset import tool_schemas
from opd.agent.verl_tools import call_parser
from opd.data.chat_template import render

_QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]


def check_chat_template(config: DictConfig, tokenizer: Any) -> None:
    """Have the student's template write what the run will ask of it: one question, or conversations with tools.

    Args:
        config: the trainer's. tokenizer: the student's; a custom template of the config becomes its own.

    Tools of the user's own (`agent.tool_config_path`) are described once they are made, with the rollout; the template
    is checked without them here, and with them there.

    Raises:
        UnfitTemplate: it fails, or cannot carry tool conversations exactly.
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    if rollout.agent.default_agent_loop != AGENT_LOOP:
        render(tokenizer, _QUESTION, **(config.data.get("apply_chat_template_kwargs") or {}))
        return
    settings = AgentSettings.of(config)
    Runners(
        settings,
        tokenizer,
        schemas=[] if settings.uses_own_tools else tool_schemas(settings.toolset),
        make_parser=lambda found: call_parser(settings.tool_format, tokenizer, found),
    )
