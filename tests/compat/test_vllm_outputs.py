"""The settings of a request to vLLM. With vLLM's own engine: tests/vllm_cpu."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from opd.compat.vllm_outputs import server_of


class _Base:
    """In the place of verl's `vLLMHttpServer`."""

    async def run_server(self, args: Any) -> None:
        self.engine = SimpleNamespace(
            generate=lambda prompt, sampling_params, request_id: (sampling_params, request_id)
        )


@pytest.fixture
def ask(monkeypatch):
    named = ModuleType("vllm.sampling_params")
    named.RequestOutputKind = SimpleNamespace(FINAL_ONLY="the last alone")
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", named)
    server = server_of(_Base)()
    asyncio.run(server.run_server(None))

    def asked(**sampling: Any) -> Any:
        params = SimpleNamespace(output_kind="each", detokenize=True, **sampling)
        got, name = server.engine.generate(prompt={}, sampling_params=params, request_id="r")
        assert name == "r"
        return got

    return asked


def test_the_last_output_alone_and_no_text(ask):
    params = ask(stop=[])
    assert params.output_kind == "the last alone"
    assert not params.detokenize


def test_texts_that_end_an_answer_are_still_looked_for(ask):
    assert ask(stop=["\n"]).detokenize
