"""vLLM's engine with the server that keeps its prefixes: the requests that find keys and values of earlier weights."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.vllm_cpu.served import Served

from opd.compat.vllm_servers import begun_under, server_of
from opd.data.toy import STUDENT_DIR

BLOCK = 16
PROMPT = [5 + i % 90 for i in range(64)]


async def _asked(server: Any, name: str, tokens: list[int], sampling: dict[str, Any]) -> tuple[list[int], int]:
    """Return the tokens that came, and how many of the tokens before them were in the cache."""
    fixed = {"max_tokens": BLOCK, "temperature": 0, "detokenize": False, "ignore_eos": True}
    last = (await server.outputs(name, tokens, **fixed, **sampling))[-1]
    return list(last.outputs[0].token_ids), last.num_cached_tokens


@pytest.fixture(scope="module")
def served() -> dict[str, int]:
    """Cached tokens of each request."""

    async def scenario() -> dict[str, int]:
        server = server_of(Served, keeps_prefixes=True)()
        await server.run_server(
            SimpleNamespace(
                model=str(STUDENT_DIR),
                enforce_eager=True,
                max_model_len=128,
                block_size=BLOCK,
                skip_tokenizer_init=True,
            )
        )
        try:
            cached = {}
            tokens, cached["begun"] = await _asked(server, "begun", PROMPT, {})
            row = PROMPT + tokens
            more, cached["goes on"] = await _asked(server, "goes on", row, begun_under(0))
            row += more
            server.global_steps = 1  # an update
            await server.clear_kv_cache()
            _, cached["goes on after an update"] = await _asked(server, "goes on after", row, begun_under(0))
            _, cached["begun after an update"] = await _asked(server, "begun after", PROMPT, {})
            _, cached["begun beside it"] = await _asked(server, "beside", PROMPT, {})
            return cached
        finally:
            server.engine.shutdown()

    return asyncio.run(asyncio.wait_for(scenario(), timeout=300))


def test_a_response_goes_on_from_its_own_keys_and_values(served):
    assert served["begun"] == 0
    assert served["goes on"] == len(PROMPT)


def test_also_after_an_update(served):
    assert served["goes on after an update"] == len(PROMPT) + BLOCK


def test_a_response_that_begins_after_an_update_finds_nothing_of_earlier_weights(served):
    assert served["begun after an update"] == 0
    assert served["begun beside it"] == len(PROMPT) - BLOCK  # the last token is always computed, with its block
