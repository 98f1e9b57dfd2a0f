"""The determinism contract: an answer's bits do not depend on batch mates, arrival order or slot."""

import random

import pytest
import torch
from tests.rollout.cpu.tiny import VOCAB, Answer, answer_one, make_engine, tiny_model

from opd.rollout.cpu.engine import DecodeBatch


def random_requests(num_requests: int, seed: int):
    """(prompt, sampling parameters) of many lengths, temperatures and filters."""
    rng = random.Random(seed)
    return [
        (
            [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, rng.randrange(1, 40), rng.randrange(1, 300)]))],
            {
                "max_tokens": rng.randrange(1, 30),
                "temperature": rng.choice([0.0, 0.7, 1.0, 1.3]),
                "top_k": rng.choice([-1, -1, 5]),
                "top_p": rng.choice([1.0, 1.0, 0.8]),
                "seed": rng.getrandbits(64),
            },
        )
        for _ in range(num_requests)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "num_requests"), [("qwen3", 40), ("qwen2", 10), ("llama", 10)])
def test_an_answer_is_bit_for_bit_the_same_alone_and_among_any_others(architecture, num_requests):
    engine = make_engine(tiny_model(architecture))
    requests = random_requests(num_requests, seed=1)
    alone = [answer_one(engine, prompt, **params) for prompt, params in requests]
    rng = random.Random(2)
    for _ in range(3):
        # Any order, arrivals between steps, strangers next to them.
        order = rng.sample(range(len(requests)), len(requests))
        strangers = random_requests(20, seed=rng.getrandbits(32))
        answers = {}
        while order or engine.num_unfinished:
            for _ in range(rng.randrange(8)):
                if order:
                    index = order.pop()
                    engine.submit(*requests[index], str(index))
                if strangers:
                    engine.submit(*strangers.pop(), f"stranger-{len(strangers)}")
            answers |= {done.request_id: Answer(done.token_ids, done.logprobs) for done in engine.step()}
        for index, expected in enumerate(alone):
            assert answers[str(index)] == expected, f"request {index} has other bits beside others"


def test_the_check_finds_arithmetic_that_depends_on_the_row(monkeypatch):
    engine = make_engine(tiny_model())
    honest = DecodeBatch.next_logits

    def place_dependent(self, model, tokens, positions, num_used):
        logits = honest(self, model, tokens, positions, num_used)
        return torch.cat([logits[:-1], logits[-1:] * (1 + 2**-20)])

    monkeypatch.setattr(DecodeBatch, "next_logits", place_dependent)
    with pytest.raises(RuntimeError, match="a row's place in a decode batch of 64 changes its bits"):
        engine.check_rows()
