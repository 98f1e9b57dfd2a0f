"""The keys and values that a request to vLLM finds, if kept over updates. With vLLM's own engine: tests/vllm_cpu."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from opd.compat.vllm_prefixes import begun_under, server_of


class _Base:
    """In the place of verl's `vLLMHttpServer`."""

    def __init__(self) -> None:
        self.global_steps = 0
        self.asked: list[tuple[str | None, Any]] = []
        self.num_cleared = 0

    async def run_server(self, args: Any) -> None:
        def generate(prompt: dict[str, Any], sampling_params: Any, request_id: str) -> str:
            self.asked.append((prompt["cache_salt"], prompt["prompt_token_ids"]))
            return request_id

        self.engine = SimpleNamespace(generate=generate)

    async def clear_kv_cache(self) -> None:
        self.num_cleared += 1


def _server() -> Any:
    server = server_of(_Base)()
    asyncio.run(server.run_server(None))
    return server


def _ask(server: Any, sampling: dict[str, Any]) -> None:
    params = SimpleNamespace(extra_args=sampling.get("extra_args"))
    asked = server.engine.generate(prompt={"prompt_token_ids": [1]}, sampling_params=params, request_id="r")
    assert asked == "r"


def test_a_response_finds_what_was_read_since_the_version_under_which_it_began():
    server = _server()
    _ask(server, {})
    server.global_steps = 4
    _ask(server, begun_under(0))
    _ask(server, {})
    assert server.asked == [("0", [1]), ("0", [1]), ("4", [1])]


def test_an_update_clears_nothing():
    server = _server()
    asyncio.run(server.clear_kv_cache())
    assert server.num_cleared == 0
