"""The server's contract, in this process and without Ray."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from tests.rollout.cpu.tiny import server_config, tiny_model
from tests.scripted import Script, override
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

from opd.rollout.cpu.engine import RolloutEngine
from opd.rollout.cpu.model import check_complete
from opd.rollout.cpu.server import RolloutServer


def with_server(scenario: Callable[[RolloutServer], Awaitable[None]], *, load: bool = True, **changes) -> None:
    """Run an async scenario against a server that has the tiny model's weights."""

    async def run() -> None:
        server = RolloutServer(server_config(**changes))
        if load:
            await server.load_weights(tiny_model().state_dict(), last=True, global_steps=7)
        await asyncio.wait_for(scenario(server), timeout=60)

    asyncio.run(run())


def test_a_broken_weight_sync_fails_and_leaves_the_server_without_weights():
    async def scenario(server):
        state = dict(tiny_model().state_dict())
        name = next(iter(state))
        with pytest.raises(RuntimeError, match="size mismatch"):
            await server.load_weights({name: torch.zeros(1)}, last=True, global_steps=8)
        with pytest.raises(RuntimeError, match="no weights"):
            await server.generate([5], {}, "r")
        del state[name]
        with pytest.raises(ValueError, match=r"1 of \d+ tensors never came"):
            await server.load_weights(state, last=True, global_steps=8)
        await server.load_weights(tiny_model().state_dict(), last=True, global_steps=8)
        assert (await server.generate([5], {"max_tokens": 1}, "r")).extra_fields["global_steps"] == 8

    with_server(scenario)


@pytest.mark.parametrize("missing", ["lm_head.weight", "model.embed_tokens.weight"])
def test_a_tied_weight_may_come_under_either_name(missing):
    model = tiny_model(tied=True)
    check_complete(model, model.state_dict().keys() - {missing})


def test_weights_are_refused_while_requests_run():
    async def scenario(server):
        running = asyncio.create_task(server.generate([5], {"max_tokens": 300}, "long"))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="1 requests are unfinished; wait for them"):
            await server.load_weights(tiny_model().state_dict(), last=True, global_steps=8)
        await running
        await server.load_weights(tiny_model().state_dict(), last=True, global_steps=8)

    with_server(scenario)


def test_sleep_waits_for_the_last_request_if_there_was_any():
    async def scenario(server):
        await server.sleep()
        asked = [server.generate([5], {"max_tokens": num, "ignore_eos": True}, str(num)) for num in (1, 100)]
        short, long = map(asyncio.create_task, asked)
        await short
        await server.sleep()
        await server.load_weights(tiny_model().state_dict(), last=True, global_steps=8)  # refused while requests run
        await long

    with_server(scenario)


def test_a_crash_of_the_engine_fails_every_waiting_and_later_call(monkeypatch):
    def crash(self):
        raise ZeroDivisionError("a bug in a step")

    async def scenario(server):
        monkeypatch.setattr(RolloutEngine, "step", crash)
        outcomes = await asyncio.gather(*[server.generate([5], {}, f"r{i}") for i in range(5)], return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, RuntimeError)
            assert "the rollout engine stopped: ZeroDivisionError: a bug in a step" in str(outcome)
        with pytest.raises(RuntimeError, match="the rollout engine stopped"):
            await server.load_weights({}, last=True, global_steps=1)

    with_server(scenario)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory) -> str:
    """A tokenizer of whole words with the two chat tokens."""
    words = ["<unk>", "<|im_start|>", "<|im_end|>", "assistant", "user", "weather", "sum", "call", "done", " "]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words[1:3]])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words[3:]])
    tokenizer.decoder = Fuse()
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


USER, ASSISTANT, WEATHER, SUM = [1, 4], [1, 3], [5], [6]
"""Token ids of the openings of a turn, and of the words "weather" and "sum"."""


def test_a_script_answers_by_assistant_turn_and_repeats_its_last_reply(tokenizer_folder):
    script = Script({"": ["call", "done"]}, tokenizer_folder)
    first = USER + WEATHER + [2] + ASSISTANT
    assert script.reply(first) == [7, 2]
    assert script.reply([*first, 7, 2, *ASSISTANT]) == [8, 2]
    assert script.reply([*first, 7, 2, *ASSISTANT, 8, 2, *ASSISTANT]) == [8, 2]


def test_a_server_answers_by_the_script_of_a_file(tokenizer_folder, tmp_path):
    named = override(tmp_path, {"sum": ["call"], "": [None]}, Path(tokenizer_folder)).partition("=")[2]

    async def scenario(server):
        said = await server.generate(USER + SUM + ASSISTANT, {"max_tokens": 4}, "scripted")
        assert said.token_ids == [7, 2]
        sampled = await server.generate(USER + WEATHER + ASSISTANT, {"max_tokens": 4, "ignore_eos": True}, "sampled")
        assert len(sampled.token_ids) == 4

    with_server(scenario, script=named)
