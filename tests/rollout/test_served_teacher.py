"""The client of a served teacher, against a server that answers as vLLM does, late, wrongly or not at all."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from aiohttp import web
from tests.teacher_server import Answer, app, told

from opd.errors import UnusableInput
from opd.experiment.sections import Teacher
from opd.rollout import served_teacher
from opd.rollout.rows import IDS, LOG_PROBS
from opd.rollout.served_teacher import ServedTeacher, TeacherUnreachable

VOCAB, TOP_K = 11, 3


class Letters:
    """A tokenizer of the test's server and of its students."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) % VOCAB for letter in text]


def log_probs(ids: list[int], place: int) -> torch.Tensor:
    """Return the server's distribution [V] of the token at a place, by the tokens before it."""
    made = torch.Generator().manual_seed(sum((at + 1) * token for at, token in enumerate(ids[:place])))
    return torch.randn(VOCAB, generator=made).log_softmax(-1)


def completion(asked: dict[str, Any], *, most: int = VOCAB) -> web.Response:
    ids = asked["prompt"]
    found = torch.stack([log_probs(ids, place) for place in range(1, len(ids))])
    return told(ids, found, min(asked["prompt_logprobs"], most))


@asynccontextmanager
async def teacher(answer: Answer = completion, *, wait_s: float = 5.0, vocab: int = VOCAB, num_events: int = TOP_K):
    """Serve a teacher, and yield its client."""
    runner = web.AppRunner(app("served", answer, lambda text: [ord(letter) % vocab for letter in text]))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    of = {"path": "served", "url": [f"http://127.0.0.1:{port}/v1"], "top_k": TOP_K, "wait_s": wait_s}
    client = ServedTeacher("teacher", Teacher.model_validate(of | {"dtype": "fp32", "offload": False}), num_events)
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


@pytest.mark.parametrize("num_events", [TOP_K, 0])
def test_events_are_the_given_token_and_the_likeliest_ones_at_each_place_of_the_response(num_events):
    prompt, response = [1, 2, 3], [4, 5, 6, 7]

    async def read():
        async with teacher(num_events=num_events) as client:
            return await client.read(prompt, response)

    columns = asyncio.run(read())
    for number, token in enumerate(response):
        found = log_probs(prompt + response, len(prompt) + number)
        expected = [token, *found.topk(num_events).indices.tolist()]
        assert columns[IDS][number].tolist() == expected
        torch.testing.assert_close(columns[LOG_PROBS][number], found[expected])


def test_a_server_that_is_busy_is_asked_again(monkeypatch):
    monkeypatch.setattr(served_teacher, "_FIRST_PAUSE_S", 0.01)
    states = iter([503, 429, 200])

    def answer(asked):
        state = next(states)
        return completion(asked) if state == 200 else web.Response(status=state)

    async def read():
        async with teacher(answer) as client:
            return await client.read([1, 2], [3])

    assert len(asyncio.run(read())[IDS]) == 1


def test_a_server_that_stays_away_ends_the_attempt(monkeypatch):
    monkeypatch.setattr(served_teacher, "_FIRST_PAUSE_S", 0.01)

    async def read():
        async with teacher(lambda asked: web.Response(status=503), wait_s=0.05) as client:
            await client.read([1, 2], [3])

    with pytest.raises(TeacherUnreachable, match=r"no answer for 0.05 s \(teacher.wait_s\).*status 503"):
        asyncio.run(read())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answer": lambda asked: completion(asked, most=1)}, "--max-logprobs 3"),
        (
            {"answer": lambda asked: web.json_response({"choices": [{}]})},
            "no `prompt_logprobs` of the given token and 3 more",
        ),
        ({"answer": lambda asked: web.Response(status=400, text="too long")}, "status 400: too long"),
        ({"vocab": 7}, "one tokenizer"),
    ],
)
def test_a_server_that_cannot_serve_is_refused_with_the_fix(settings, message):
    async def check():
        async with teacher(**settings) as client:
            await client.check(Letters())

    with pytest.raises(UnusableInput, match=message):
        asyncio.run(check())


def test_a_server_with_the_model_and_the_tokenizer_is_accepted_and_a_client_that_asked_nothing_closes_too():
    async def check():
        async with teacher() as client, teacher():
            await client.check(Letters())

    asyncio.run(check())
