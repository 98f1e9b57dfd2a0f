"""Pieces of a carried row from the real CPU server: their tokens, the weights that made them, and the end of the row."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.rollout.cpu.tiny import LIMITS, answer_one, make_engine, server_config, tiny_model
from verl.workers.rollout.replica import TokenOutput

from opd.rollout.carry import CarriedRow, Growth
from opd.rollout.cpu.engine import EngineConfig
from opd.rollout.cpu.server import RolloutServer
from opd.rollout.pieces import piece
from opd.rollout.seeds import TRAIN, request_seed

PROMPT = [5, 9, 11]
END = 2


class _Client:
    """verl's client of one server in this process, noting what it is asked."""

    def __init__(self, server: RolloutServer) -> None:
        self._server = server
        self.asked: list[dict[str, Any]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked.append({"request_id": request_id, "prompt_ids": list(prompt_ids), **sampling_params})
        return await self._server.generate(prompt_ids, sampling_params, request_id)


def _with_server(scenario: Callable[[RolloutServer, _Client], Awaitable[None]]) -> None:
    async def run() -> None:
        limits = EngineConfig(**LIMITS, eos_token_ids=frozenset({END}))
        server = RolloutServer(server_config(engine=limits))
        await server.load_weights(tiny_model().state_dict(), last=True, global_steps=0)
        await asyncio.wait_for(scenario(server, _Client(server)), timeout=60)

    asyncio.run(run())


async def _piece(client: _Client, row: CarriedRow, num_tokens: int, **sampling: Any) -> Growth:
    ends = frozenset() if sampling.get("ignore_eos") else frozenset({END})
    sampling = {"temperature": 1.0} | sampling
    growth = await piece(client, row, PROMPT, sampling, run_seed=3, ends=ends, num_tokens=num_tokens)
    row.grow(growth, 0)
    return growth


def _greedy(prompt: list[int], num_tokens: int, *, seed: int = 0) -> list[int]:
    engine = make_engine(tiny_model(seed=seed))
    return answer_one(engine, prompt, max_tokens=num_tokens, temperature=0.0, ignore_eos=True).token_ids


def test_pieces_under_one_set_of_weights_make_the_uninterrupted_answer():
    async def scenario(_: RolloutServer, client: _Client) -> None:
        row = CarriedRow(number=7, index=1, sample=0, limit=20)
        while not row.is_complete:
            await _piece(client, row, min(6, row.limit - len(row.tokens)), temperature=0.0, ignore_eos=True)
        assert row.tokens == _greedy(PROMPT, 20)
        assert [asked["prompt_ids"] for asked in client.asked] == [PROMPT + row.tokens[:n] for n in (0, 6, 12, 18)]
        assert [asked["max_tokens"] for asked in client.asked] == [6, 6, 6, 2]
        assert row.pieces == [(0, 20)]
        assert row.prompt_ids == PROMPT

    _with_server(scenario)


def test_a_piece_has_a_seed_of_its_own_that_no_other_row_has():
    async def scenario(_: RolloutServer, client: _Client) -> None:
        for number in (7, 8):
            row = CarriedRow(number=number, index=1, sample=0, limit=50)
            for _piece_of_row in range(2):
                await _piece(client, row, 3, ignore_eos=True)
        seeds = [asked["seed"] for asked in client.asked]
        assert seeds == [request_seed(3, TRAIN, number, 1, 0, place) for number in (7, 8) for place in (0, 3)]
        assert len(set(seeds)) == 4
        assert {asked["request_id"] for asked in client.asked} == {"row-7", "row-8"}

    _with_server(scenario)


@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_row_is_complete_with_its_end_token_wherever_that_stands_in_a_piece(more):
    async def scenario(_: RolloutServer, client: _Client) -> None:
        def row_of(number: int, limit: int = 40) -> CarriedRow:
            return CarriedRow(number=number, index=1, sample=0, limit=limit)

        for number in range(200):  # their seeds differ, so that one draws the end in the middle
            row = row_of(number)
            await _piece(client, row, 40)
            if row.tokens[-1] == END and 4 < len(row.tokens) < 35:
                break
        length = len(row.tokens)
        again, cut, full = row_of(number), row_of(number), row_of(number, limit=length - 1)
        await _piece(client, again, length + more)
        assert again.tokens == row.tokens, "a seed's draws depend on the place alone"
        assert again.is_complete
        for one in (cut, full):
            await _piece(client, one, length - 1)
            assert one.tokens == row.tokens[:-1]
        assert not cut.is_complete
        assert full.is_complete, "it may have no more tokens"

    _with_server(scenario)


def test_a_piece_that_the_server_aborts_ends_no_answer():
    class Aborting:
        async def generate(self, *_: Any, **__: Any) -> TokenOutput:
            return TokenOutput(token_ids=[5, 6], stop_reason="aborted", extra_fields={"global_steps": 1})

    row = CarriedRow(number=7, index=1, sample=0, limit=2000)
    with pytest.raises(RuntimeError, match=r"aborted a piece of row 7 at 2 of 2000 tokens"):
        asyncio.run(piece(Aborting(), row, [1], {}, run_seed=3, ends=frozenset(), num_tokens=2000))
    assert not row.is_complete


@pytest.mark.parametrize(("tokens", "version"), [([], 1), ([5], None)])
def test_a_piece_without_tokens_or_without_the_weights_that_made_it_is_an_error(tokens, version):
    class Silent:
        async def generate(self, *_: Any, **__: Any) -> TokenOutput:
            return TokenOutput(token_ids=tokens, extra_fields={"global_steps": version})

    row = CarriedRow(number=7, index=1, sample=0, limit=20)
    with pytest.raises(RuntimeError, match=f"gave {len(tokens)} tokens, made by weights of step {version}"):
        asyncio.run(piece(Silent(), row, [1], {}, run_seed=3, ends=frozenset(), num_tokens=20))
