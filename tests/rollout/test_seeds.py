"""A request's seed says what is asked, not when or by whom; a rank's process is seeded by run and rank."""

import asyncio
import random

import numpy as np
import torch

from opd.rollout.seeds import TRAIN, SeededClient, seed_rank


def test_the_samples_of_a_prompt_do_not_coincide_and_a_turn_gets_its_own_seed():
    # verl's full_determinism gives every request one seed, so that the n samples of a prompt are one sample.
    class Client:
        def __init__(self):
            self.seeds = []

        async def generate(self, request_id, *, sampling_params):
            self.seeds.append(sampling_params["seed"])

    recorded = Client()

    async def two_turns(sample):
        client = SeededClient(recorded, 1, TRAIN, 4, 9, sample)
        for _ in range(2):
            await client.generate("r", sampling_params={"temperature": 1.0})

    for sample in (0, 1, 0):
        asyncio.run(two_turns(sample))
    first, second, again = recorded.seeds[:2], recorded.seeds[2:4], recorded.seeds[4:]
    assert len({*first, *second}) == 4
    assert again == first


def test_the_process_of_a_rank_draws_the_same_in_every_run_and_something_else_than_other_ranks():
    def draws(run_seed: int, rank: int) -> tuple:
        seed_rank(run_seed, rank)
        return (random.random(), np.random.rand(), torch.rand(1).item())

    assert draws(1, 0) == draws(1, 0)
    assert len({draws(1, 0), draws(1, 1), draws(2, 0)}) == 3
