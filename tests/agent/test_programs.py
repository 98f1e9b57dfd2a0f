"""Agent programs at the address of the student: rows are the server's own record, and what does not extend it ends by name."""

import asyncio
import threading
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

import httpx
import pytest
from tests.agent.asking import post
from tests.agent.talk import SCHEMA, call
from tests.agent_evidence.play import _server_config
from tests.agent_evidence.settings import settings
from tests.scripted import Script
from transformers import AutoTokenizer

from opd.agent.dialogue import Sampled
from opd.agent.loop import Shared
from opd.agent.programs import ProgramFailed, Refused, hold
from opd.rollout.cpu.server import RolloutServer
from opd_envs.travel.toy import MODELS, STUDENT

ROW = {"raw_prompt": [{"role": "user", "content": "the price of 静州"}]}
PUBLISHED = "tests.agent.price_of"
TURNS = [call(city="静州"), "<answer>42</answer>", "bye"]
TOKENIZER = AutoTokenizer.from_pretrained(MODELS[STUDENT])


def talks(base_url, api_key, model, row, change=lambda messages: messages, **more):
    """Ask, answer the call, ask again, thank; the score says that the last answer came."""
    messages = list(row["raw_prompt"])
    said = post(base_url, api_key, messages, [SCHEMA])
    reply = {"role": "tool", "content": "It is 42<|im_end|>.", "tool_call_id": said["tool_calls"][0]["id"]}
    messages += [said | {"refusal": None}, reply]
    last = post(base_url, api_key, change(messages), **({"tools": [SCHEMA]} | more))
    post(base_url, api_key, [*messages, last, {"role": "user", "content": "thanks"}], [SCHEMA])
    return {"score": 1.0, "turns": 3}


def leaves(base_url, api_key, row, **_):
    """Return while a request is not answered yet."""

    def ask():
        with suppress(httpx.HTTPError):
            post(base_url, api_key, row["raw_prompt"], [])

    threading.Thread(target=ask, daemon=True).start()
    time.sleep(0.5)
    return 1.0


def starts_anew(**to):
    """Send the first request again after the last answer."""
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        talks(**to)
    talks(**to)


async def scripted(ids, max_tokens):
    said = Script({"price": TURNS}, MODELS[STUDENT]).reply(ids)[:max_tokens]
    return Sampled(token_ids=said, logprobs=[-0.25] * len(said))


async def silent(ids, max_tokens):
    return Sampled(token_ids=[], logprobs=[]) if "thanks" in TOKENIZER.decode(ids) else await scripted(ids, max_tokens)


async def stuck(ids, max_tokens):
    await asyncio.sleep(60)


def held(program, tmp_path, generate=scripted, idle_s=20.0, **agent):
    shared = Shared(settings(tmp_path, program="tests.agent.asking:ask", **agent), TOKENIZER)
    return asyncio.run(hold(program, ROW, generate=generate, runner_of=shared.runner_with, idle_s=idle_s))


def published(row, **to):
    """Have an environment of the library `verifiers` hold the same conversation."""
    adapter = import_module("opd_envs.verifiers")
    [row] = adapter.rows(PUBLISHED, "{}", "train", adapter.load(PUBLISHED, "{}").get_dataset())
    found = adapter.program(row=row, **to)
    assert (found["score"], found["acc"]) == (0.2, 0.0), "a reward for the form alone is no right answer"
    return {"score": 1.0, "turns": found["num_turns"]}


no_library = pytest.mark.skipif(find_spec("verifiers") is None, reason="the library verifiers is not installed")


@pytest.mark.parametrize(
    "program",
    [talks, lambda **to: asyncio.to_thread(talks, **to), pytest.param(published, marks=no_library)],
    ids=["sync", "async", "verifiers"],
)
def test_the_row_is_the_servers_record_token_by_token(tmp_path, program):
    server, record = RolloutServer(_server_config(MODELS[STUDENT])), []
    server._script = Script({"price": [TURNS[0], None, TURNS[2]]}, MODELS[STUDENT]).reply  # the second turn is sampled

    async def generate(ids, max_tokens):
        params = {"max_tokens": max_tokens, "temperature": 0.0, "seed": 1, "logprobs": True}
        out = await server.generate(ids, params, str(len(record)))
        record.append((list(ids), out.token_ids, out.log_probs))
        return Sampled(token_ids=out.token_ids, logprobs=out.log_probs)

    dialogue, returned = held(program, tmp_path, generate)
    assert (returned, dialogue.ending, len(record)) == ({"score": 1.0, "turns": 3}, "answered", 3)
    ids = record[0][0]
    for asked, said, logprobs in record:
        assert asked[: len(ids)] == ids, "a request reads what was sampled before, and what was added"
        ids, at = [*asked, *said], slice(len(asked) - len(dialogue.prompt_ids), None)
        assert dialogue.logprobs[at][: len(said)] == logprobs
        assert dialogue.mask[at][: len(said)] == [1] * len(said)
    assert dialogue.ids == ids
    assert sum(dialogue.mask) == sum(len(said) for _, said, _ in record)
    assert TOKENIZER.decode(record[2][0]).count("<|im_end|>") == 6, "a marker in a reply is taken apart"
    (made,) = dialogue.turns[0].calls
    assert (made.name, made.arguments) == ("price", {"city": "静州"})


SYSTEM = {"role": "system", "content": "be brief"}
FAULTS = {
    "other history": (lambda **to: talks(change=lambda messages: [SYSTEM, *messages], **to), Refused,
                      r'messages\[0\].role = "system": must be "user", as the conversation has it'),
    "no reply": (lambda **to: talks(change=lambda messages: messages[:-1], **to), Refused,
                 r"the roles \(none\): must be one of tool for each of its 1 calls"),
    "other tools": (lambda **to: talks(tools=[], **to), Refused, "tools: must be the tools of the conversation's first"),
    "a stream": (lambda **to: talks(stream=True, **to), Refused, "stream = true: must be one of null, false"),
    "silent": (lambda **_: None, ProgramFailed, "returned before it asked"),
    "slow": (lambda **_: time.sleep(60), ProgramFailed, "neither asked nor returned in 0.5 s: raise agent.call_timeout_s"),
    "raises": (lambda row, **_: row["no such field"], ProgramFailed, "agent.program raised KeyError: 'no such field'"),
    "leaves": (leaves, ProgramFailed, "returned before its last request was answered"),
    "no server": (talks, TypeError, "'NoneType' object is not callable"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_conversation_that_fails_says_why(tmp_path, name):
    program, error, text = FAULTS[name]
    generate = {"no server": None, "leaves": stuck}.get(name, scripted)
    with pytest.raises(error, match=text):
        held(program, tmp_path, generate, idle_s=0.5 if name == "slow" else 20.0)


@pytest.mark.parametrize("program", [talks, starts_anew])
@pytest.mark.parametrize(("generate", "ending"), [(scripted, "max_assistant_turns"), (silent, "unfinished_turn")])
def test_a_program_that_ends_by_a_limit_keeps_its_row(program, generate, ending, tmp_path):
    limits = {"max_assistant_turns": 2} if generate is scripted else {}
    dialogue, returned = held(program, tmp_path, generate, **limits)
    assert (dialogue.ending, len(dialogue.turns), returned) == (ending, 2, None)
    shared = Shared(settings(tmp_path, program="tests.agent.asking:ask"), TOKENIZER)
    assert shared.final_text(dialogue) == "<answer>42</answer>"
