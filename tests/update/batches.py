"""A batch of uneven rows, one of them partly masked, one wholly."""

from __future__ import annotations

import random

from tests.update.models import VOCAB
from tests.update.workers import row


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
