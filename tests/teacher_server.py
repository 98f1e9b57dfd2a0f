"""A server that answers as vLLM does about prompts, for a served teacher of the tests."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from aiohttp import web
from transformers import AutoConfig, AutoTokenizer

from opd.rollout.cpu.model import build_model

Answer = Callable[[dict[str, Any]], web.Response]


def told(ids: list[int], log_probs: torch.Tensor, num: int) -> web.Response:
    """Return a completion from log-probabilities [n - 1, V] of all tokens but the first: `num` likeliest and the given one."""
    places = list[Any]([None])
    for token, found in zip(ids[1:], log_probs, strict=True):
        order = found.argsort(descending=True).tolist()
        named = sorted({*order[:num], token})  # in no order of theirs
        places.append({str(one): {"logprob": float(found[one]), "rank": order.index(one) + 1} for one in named})
    return web.json_response({"choices": [{"prompt_logprobs": places}]})


def app(model: str, answer: Answer, tokens: Callable[[str], list[int]]) -> web.Application:
    """Return the routes that a client of a served teacher calls."""

    async def complete(request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked["model"] == model
        return answer(asked)

    async def tokenize(request: web.Request) -> web.Response:
        return web.json_response({"tokens": tokens((await request.json())["prompt"])})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": model}]})

    made = web.Application()
    made.add_routes(
        [web.post("/v1/completions", complete), web.post("/tokenize", tokenize), web.get("/v1/models", models)]
    )
    return made


@contextmanager
def serving(folder: str, seeds: list[int] | None = None) -> Iterator[tuple[str, ...]]:
    """Serve a model by the forward of the CPU's rollout server; yield a teacher's keys for `--set`, note the seeds of answers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = build_model(AutoConfig.from_pretrained(folder), folder)

    def log_probs(ids: list[int]) -> torch.Tensor:
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :, : len(tokenizer)].log_softmax(-1)

    @torch.inference_mode()
    def answer(asked: dict[str, Any]) -> web.Response:
        ids = asked["prompt"]
        if "prompt_logprobs" in asked:
            return told(ids, log_probs(ids)[:-1], asked["prompt_logprobs"])
        made, drawing = list[int](), torch.Generator().manual_seed(asked["seed"])
        while tokenizer.eos_token_id not in made and len(made) < asked["max_tokens"]:
            made.append(int(log_probs(ids + made)[-1].exp().multinomial(1, generator=drawing)))
        if seeds is not None:
            seeds.append(asked["seed"])
        return web.json_response({"choices": [{"token_ids": made}]})

    runner = web.AppRunner(app("toy", answer, lambda text: tokenizer.encode(text, add_special_tokens=False)))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    try:
        port = asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield "path=toy", f"url=http://127.0.0.1:{port}/v1", "dtype=fp32"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
