"""A server of vLLM: when it takes the device, what a request asks for, and which keys and values it finds. With vLLM's own engine: tests/vllm_cpu."""

import asyncio
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import verl

from opd.compat.vllm_servers import begun_under, server_of


class _Base:
    """In the place of verl's `vLLMHttpServer`."""

    global_steps = num_cleared = 0

    async def run_server(self, args: Any) -> None:
        self.engine = SimpleNamespace(generate=lambda prompt, sampling_params, request_id: (prompt, sampling_params))

    async def clear_kv_cache(self) -> None:
        self.num_cleared += 1

    async def launch_server(self, master_port: int) -> None:
        self.port = master_port


@pytest.fixture
def started(monkeypatch):
    named = ModuleType("vllm.sampling_params")
    named.RequestOutputKind = SimpleNamespace(FINAL_ONLY="the last alone")
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", named)

    def start(**options: Any) -> Any:
        server = server_of(_Base, **options)()
        asyncio.run(server.run_server(None))
        return server

    return start


def _asked(server: Any, **sampling: Any) -> tuple[dict[str, Any], Any]:
    params = SimpleNamespace(**{"output_kind": "each", "detokenize": True, "stop": [], "extra_args": None} | sampling)
    return server.engine.generate(prompt={"prompt_token_ids": [1]}, sampling_params=params, request_id="r")


def test_the_last_output_alone_and_no_text_but_where_a_text_ends_the_answer(started):
    prompt, params = _asked(started())
    assert prompt == {"prompt_token_ids": [1]}
    assert params.output_kind == "the last alone"
    assert not params.detokenize
    assert _asked(started(), stop=["\n"])[1].detokenize


def test_a_response_finds_what_was_read_since_the_version_under_which_it_began(started):
    server = started(keeps_prefixes=True)
    salts = [_asked(server)[0]["cache_salt"]]
    server.global_steps = 4
    salts += [_asked(server, **sampling)[0]["cache_salt"] for sampling in (begun_under(0), {})]
    assert salts == ["0", "0", "4"]


@pytest.mark.parametrize("keeps", [True, False])
def test_an_update_clears_the_cache_that_is_not_kept(started, keeps):
    server = started(keeps_prefixes=keeps)
    asyncio.run(server.clear_kv_cache())
    assert server.num_cleared == (not keeps)


def test_a_server_takes_the_device_once_its_ranks_answer():
    async def launch() -> list[bool]:
        answers = [asyncio.get_running_loop().create_future() for _ in range(2)]
        server = server_of(_Base)()
        server.workers = [
            SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda _, one=one: one)) for one in answers
        ]
        launching = asyncio.create_task(server.launch_server(master_port=5))
        seen = []
        for answer in answers:
            await asyncio.sleep(0)
            seen.append(hasattr(server, "port"))
            answer.set_result(None)
        await launching
        return [*seen, server.port == 5]

    assert asyncio.run(launch()) == [False, False, True]


def test_verl_s_server_still_takes_the_device_in_launch_server_only():
    source = Path(verl.__path__[0], "workers/rollout/vllm_rollout/vllm_async_server.py").read_text()
    begun, launched = source.split("async def launch_server(")
    assert "AsyncLLM.from_vllm_config(" not in begun
    assert "AsyncLLM.from_vllm_config(" in launched
    assert "AsyncLLM(" not in source
