"""A batch of uneven rows, one of them partly masked, one wholly."""

from __future__ import annotations

import random

from tests.worker.models import VOCAB
from tests.worker.workers import row


def uneven_rows(count: int = 8, seed: int = 0) -> list[dict]:
    """Rows of uneven length; one with a masked (tool) span, one fully masked."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        prompt = [rng.randrange(3, VOCAB) for _ in range(rng.randint(3, 11))]
        response = [rng.randrange(3, VOCAB) for _ in range(rng.randint(2, 13))]
        mask = [1] * len(response)
        if i == 2:
            mask[1:] = [0] * (len(mask) - 1)
        if i == 5:
            mask = [0] * len(mask)
        rows.append(row(prompt, response, mask, weight=0.5 + i / 8))
    return rows


def long_rows() -> list[dict]:
    """Rows with responses of 160 tokens, behind uneven numbers of tokens one token again and again; one row masks a token."""
    rng = random.Random(3)
    rows = []
    for count in (64, 72, 80, 88, 96, 104, 112, 160):
        response = [rng.randrange(3, VOCAB) for _ in range(count)] + [33] * (160 - count)
        rows.append(row([5, 9, 4], response, [1] * 30 + [0] * (count == 80) + [1] * (130 - (count == 80)), weight=1.0))
    return rows
