"""A model folder in the environment: the CPU rollout server, our dialogues and the agent's reward, without a trainer."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tests.agent_evidence.settings import MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS
from transformers import AutoConfig, AutoTokenizer

from opd.agent.dialogue import Dialogue, Sampled
from opd.agent.environments import compute_score
from opd.agent.loop import Shared
from opd.agent.settings import FINAL_TEXT
from opd.agent.tools import ToolReply
from opd.rollout.cpu.engine import EngineConfig
from opd.rollout.cpu.server import RolloutServer, ServerConfig


@dataclass(frozen=True, kw_only=True)
class Played:
    """One conversation and what the reward said of it."""

    dialogue: Dialogue
    score: float
    breakdown: Mapping[str, float | str]


def make_environment(folder: Path, config: DictConfig) -> Shared:
    """The environment for the model in `folder`."""
    return Shared(config, AutoTokenizer.from_pretrained(folder))


def play(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    settings: DictConfig,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    blank_replies: bool = False,
) -> list[Played]:
    """Hold the rows' conversations with the model in a folder, in fp32.

    Args:
        temperature: 0 is greedy. seed: enters every request's seed.
        blank_replies: a control; every tool reply reaches the model empty.
    """
    environment = make_environment(folder, settings)
    if blank_replies:
        answer = environment.pool.call

        async def blank(*arguments: Any, **of_row: Any) -> ToolReply:
            return (await answer(*arguments, **of_row))._replace(text="")

        environment.pool.call = blank
    try:
        return asyncio.run(_play(environment, _server_config(folder), rows, temperature, seed))
    finally:
        environment.pool.close()


async def _play(
    environment: Shared,
    config: ServerConfig,
    rows: Sequence[Mapping[str, Any]],
    temperature: float,
    seed: int,
) -> list[Played]:
    server = RolloutServer(config)

    async def one(index: int, row: Mapping[str, Any]) -> Played:
        turn = 0

        async def generate(ids: Sequence[int], max_tokens: int) -> Sampled:
            nonlocal turn
            turn += 1
            params = {
                "max_tokens": max_tokens, "temperature": temperature, "logprobs": True,
                "seed": (seed << 32) + (index << 8) + turn,
            }  # fmt: skip
            out = await server.generate(ids, params, f"{index}-{turn}")
            return Sampled(token_ids=out.token_ids, logprobs=out.log_probs)

        extra = row["extra_info"]
        dialogue = await environment.runner(extra).run(row["prompt"], generate=generate, tools=environment.tools(extra))
        told = dict(extra) | {FINAL_TEXT: environment.final_text(dialogue)}
        text = environment.tokenizer.decode(dialogue.response_ids, skip_special_tokens=True)
        found = compute_score(
            row["data_source"], text, row["reward_model"]["ground_truth"], told,
            toolset=environment.toolset, database_dir=environment.agent.database_dir,
        )  # fmt: skip
        return Played(dialogue=dialogue, score=float(found["score"]), breakdown=found)

    return list(await asyncio.gather(*(one(index, row) for index, row in enumerate(rows))))


def _server_config(folder: Path) -> ServerConfig:
    config = AutoConfig.from_pretrained(folder)
    return ServerConfig(
        engine=EngineConfig(
            vocab_size=min(len(AutoTokenizer.from_pretrained(folder)), config.vocab_size),
            eos_token_ids=frozenset({config.eos_token_id}),
            max_model_len=MAX_PROMPT_TOKENS + MAX_RESPONSE_TOKENS,
            response_length=MAX_RESPONSE_TOKENS,
        ),
        hf_config=config,
        model_path=str(folder),
        load_weights=True,
    )
