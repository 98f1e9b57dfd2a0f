"""The loop that verl runs, over the real rollout server, tool processes and database; no trainer and no Ray."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests.agent.talk import call
from tests.agent_evidence.play import play
from tests.agent_evidence.settings import settings
from transformers import AutoConfig, AutoTokenizer

from opd.agent.settings import AGENT_LOOP, FINAL_TEXT
from opd.experiment import parse_tree
from opd.experiment.run_config import KEY, RunConfig, RunFacts
from opd.rollout.cpu.config import EngineConfig
from opd.rollout.cpu.server import RolloutServer, ScriptConfig, ServerConfig
from opd_envs.travel.toy import MODELS, STUDENT, heldout_rows, make_world, open_world

TOOLSET = str(Path(__file__).with_name("faulty_tools.py"))
FOLDER = MODELS[STUDENT]
TIMEOUT_S = 10.0  # what the calls that do answer have for it, too
SCRIPT = {
    "case-hang": [call("hang"), "<answer>1</answer>"],
    "case-raise": [call("raise"), "<answer>2</answer>"],
    "case-quick": [call("ping"), call("ping"), "<answer>3</answer>"],
    "case-both": [call("hang") + call("ping"), "<answer>4</answer>"],
}


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Path:
    return make_world(tmp_path_factory.mktemp("world") / "database")


def config_of(database: Path):
    turns = {
        "max_assistant_turns": 5, "max_user_turns": None, "max_parallel_calls": 2, "max_tool_response_length": 60,
        "format": "hermes", "tool_config_path": None,
    }  # fmt: skip
    agent = {
        "database_dir": str(database), "call_timeout_s": TIMEOUT_S, "num_tool_processes": 3, "toolset": TOOLSET,
    }  # fmt: skip
    tree = {"kind": "opd-agent", "model": {"path": "m"}, "teacher": {"path": "t"}, "agent": agent}
    ours = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="r", run_dir="out/r"))
    return OmegaConf.create(
        {
            KEY: ours.text(),
            "data": {"max_prompt_length": 128, "max_response_length": 400, "apply_chat_template_kwargs": {}},
            "actor_rollout_ref": {"rollout": {"multi_turn": turns, "prompt_length": 128, "response_length": 400}},
        }
    )


class Client:
    """verl's client without Ray: straight to the server."""

    def __init__(self, server: RolloutServer):
        self._server = server

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        output = await self._server.generate(prompt_ids, sampling_params, request_id)
        steps = {"min_global_steps": 7, "max_global_steps": 7}
        output.extra_fields |= steps
        return output


def outputs(database: Path, names: list[str]):
    """The loop's outputs for some scripted cases, run at the same time."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap, _agent_loop_registry

    from opd.agent.loop import ToolDialogueLoop

    assert _agent_loop_registry[AGENT_LOOP]["_target_"] == "opd.agent.loop.ToolDialogueLoop"
    tokenizer, config = AutoTokenizer.from_pretrained(FOLDER), config_of(database)
    server_config = ServerConfig(
        engine=EngineConfig(
            vocab_size=len(tokenizer), eos_token_ids=(tokenizer.eos_token_id,), max_model_len=528, prompt_length=128,
            response_length=400,
        ),
        hf_config=AutoConfig.from_pretrained(FOLDER),
        model_path=str(FOLDER),
        load_weights=True,
        script=ScriptConfig(replies=SCRIPT, tokenizer_path=str(FOLDER)),
    )  # fmt: skip

    async def run():
        client = Client(RolloutServer(server_config))
        loops = []

        async def one(name):
            loop = ToolDialogueLoop(
                trainer_config=DictConfigWrap(config=config), server_manager=client, tokenizer=tokenizer, processor=None,
                dataset_cls=None, data_config=DictConfigWrap(config.data), tools=ToolListWrap([]),
            )  # fmt: skip
            loops.append(loop)
            row = {
                "raw_prompt": [{"role": "user", "content": name}],
                "extra_info": {"tool_selection": ["hang", "raise", "ping"]},
            }
            return await loop.run({"temperature": 1.0, "seed": 1, "logprobs": True}, **row), loop.dialogue

        return await asyncio.gather(*(one(name) for name in names))

    return dict(zip(names, asyncio.run(run()), strict=True))


@pytest.mark.slow
def test_tools_that_hang_or_raise_cost_their_own_conversation_a_reply_and_no_one_else_anything(database):
    found = outputs(database, list(SCRIPT))
    hang, both = found["case-hang"][1].turns[0].calls, found["case-both"][1].turns[0].calls
    assert f"gave no answer in {TIMEOUT_S:g} s" in hang[0].reply
    assert hang[0].seconds >= TIMEOUT_S
    assert "failed" in found["case-raise"][1].turns[0].calls[0].reply
    assert [record.error for record in both] == [True, False], "its neighbour in the same turn has its answer"
    assert json.loads(both[1].reply) == {"ok": 1}
    quick = [record for turn in found["case-quick"][1].turns for record in turn.calls]
    assert all(record.seconds < TIMEOUT_S for record in quick)
    for k, name in enumerate(SCRIPT, start=1):
        output, dialogue = found[name]
        assert dialogue.ending == "answered"
        assert output.extra_fields[FINAL_TEXT] == f"<answer>{k}</answer>"
        assert output.extra_fields["min_global_steps"] == output.extra_fields["max_global_steps"] == 7
        assert output.response_ids == dialogue.response_ids
        assert output.response_mask == dialogue.mask
        assert len(output.response_logprobs) == len(output.response_ids)
        assert all(
            (logprob != 0) <= trained
            for logprob, trained in zip(output.response_logprobs, output.response_mask, strict=True)
        )
        assert output.num_turns == 2 * len(dialogue.turns)


@pytest.mark.slow
def test_the_same_seed_holds_the_same_conversations(database):
    rows = heldout_rows(open_world(database), seed=5)[:12]

    def said(seed: int) -> list[list[int]]:
        played = play(FOLDER, rows, settings(database), temperature=1.0, seed=seed)
        return [one.dialogue.response_ids for one in played]

    assert said(1) == said(1)
    assert said(1) != said(2)
