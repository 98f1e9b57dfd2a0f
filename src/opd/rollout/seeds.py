"""Seeds: a generation request's from its content, not from its time or sender; a rank's from run and rank."""

import hashlib
import random
from typing import Any

import numpy as np
import torch

VALIDATION = "val"
TRAIN = "train"


def request_seed(run_seed: int, partition: str, step: int, data_index: int, sample: int, turn: int) -> int:
    """Return a 63-bit seed for one generation request.

    Args:
        run_seed: the run's seed. partition: `TRAIN` or `VALIDATION` (both number their rows from 0). step: global step; of a
            row that is carried over steps, its number in the run.
        data_index: row of the data set. sample: which of the `n` samples of the prompt. turn: assistant turn; of a carried
            row, how many of its tokens are there already.
    """
    text = f"{run_seed}/{partition}/{step}/{data_index}/{sample}/{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_rank(run_seed: int, rank: int) -> None:
    """Seed the global generators of one rank's process, so that dropout is the same in every run.

    verl saves these generators with a checkpoint and restores them, but never seeds them.
    """
    seed = int.from_bytes(hashlib.sha256(f"{run_seed}/rank/{rank}".encode()).digest()[:4], "big")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # every device's generator


class SeededClient:
    """A verl LLM client for one trajectory that gives every assistant turn its own seed."""

    def __init__(self, client: Any, run_seed: int, partition: str, step: int, data_index: int, sample: int):
        self._client = client
        self._key = (run_seed, partition, step, data_index, sample)
        self._turn = 0

    async def generate(self, request_id: str, *, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        seed = request_seed(*self._key, self._turn)
        self._turn += 1
        return await self._client.generate(request_id, sampling_params={**sampling_params, "seed": seed}, **kwargs)
