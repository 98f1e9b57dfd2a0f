"""vLLM's engine with the server that answers once: the same tokens as an output after every token, also of a broken request."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.vllm_cpu.served import Served

from opd.compat.vllm_servers import server_of
from opd.data.toy import STUDENT_DIR

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

NUM_TOKENS = 24
PROMPT = [5 + i % 90 for i in range(32)]


@pytest.fixture(scope="module")
def answers() -> dict[str, list[RequestOutput]]:
    """The outputs of each request, from an engine as verl asks it and from one that answers once."""

    async def asked(kind: type[Any], text: str = "") -> dict[str, list[RequestOutput]]:
        server = kind()
        await server.run_server(SimpleNamespace(model=str(STUDENT_DIR), enforce_eager=True, max_model_len=512))
        try:
            drawn = {"temperature": 1.0, "seed": 7, "ignore_eos": True, "skip_special_tokens": False}
            whole = await server.outputs("whole", PROMPT, max_tokens=NUM_TOKENS, logprobs=0, **drawn)
            text = text or whole[-1].outputs[0].text
            ended = await server.outputs("ended", PROMPT, max_tokens=NUM_TOKENS, stop=text[3:5], **drawn)
            broken = asyncio.create_task(server.outputs("broken", PROMPT, max_tokens=400, **drawn))
            while not server.engine.output_processor.request_states:
                await asyncio.sleep(0)
            state = next(iter(server.engine.output_processor.request_states.values()))
            while state.detokenizer.num_output_tokens() < 2:
                await asyncio.sleep(0.001)
            await server.engine.abort("broken")
            return {"whole": whole, "ended": ended, "broken": await broken}
        finally:
            server.engine.shutdown()

    async def both() -> dict[str, list[RequestOutput]]:
        as_verl = await asked(Served)
        once = await asked(server_of(Served), as_verl["whole"][-1].outputs[0].text)
        return {f"{name}, as verl asks": outputs for name, outputs in as_verl.items()} | once

    return asyncio.run(asyncio.wait_for(both(), timeout=500))


def _tokens(outputs: list[RequestOutput]) -> list[int]:
    return list(outputs[-1].outputs[0].token_ids)


def test_one_output_with_the_same_tokens_and_no_text(answers):
    assert len(answers["whole, as verl asks"]) > NUM_TOKENS // 2
    [output] = answers["whole"]
    assert _tokens([output]) == _tokens(answers["whole, as verl asks"])
    assert len(_tokens([output])) == len(output.outputs[0].logprobs) == NUM_TOKENS
    assert output.outputs[0].text == ""


def test_a_text_still_ends_an_answer(answers):
    assert answers["ended"][-1].outputs[0].finish_reason == "stop"
    assert _tokens(answers["ended"]) == _tokens(answers["ended, as verl asks"])


def test_a_request_that_is_broken_off_gives_what_it_has(answers):
    assert answers["broken"][-1].outputs[0].finish_reason == "abort"
    assert 2 <= len(_tokens(answers["broken"])) < 400
