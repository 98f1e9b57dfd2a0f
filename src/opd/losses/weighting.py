"""Weights of rows by their rewards."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def reward_weights(rewards: Tensor, uids: Sequence[str] | np.ndarray, *, beta: float) -> Tensor:
    """Return row weights [R] n softmax(r / beta) within each prompt's group of n rows: mean 1 in every group.

    Args:
        rewards: [R] one scalar reward a row. uids: [R] the prompt of each row.
        beta: softmax temperature, > 0; large is uniform, small puts all weight on the best rows.

    Raises:
        ValueError: lengths differ, beta is not positive and finite, or a reward is not finite.
    """
    if not 0.0 < beta < float("inf"):
        raise ValueError(f"reward_beta={beta!r}: must be positive and finite; leave it unset for equal weights")
    if len(rewards) != len(uids):
        raise ValueError(f"rewards ({len(rewards)}) and uids ({len(uids)}): one entry a row")
    values = rewards.detach().double().cpu()
    if bad := [str(uids[i]) for i in (~torch.isfinite(values)).nonzero().flatten().tolist()]:
        raise ValueError(
            f"rewards: not finite for prompts {bad[:5]}; a failed scorer must give a number, or its row be dropped"
        )
    weights = torch.empty_like(values)
    rows_of: dict[str, list[int]] = {}
    for row, uid in enumerate(uids):
        rows_of.setdefault(str(uid), []).append(row)
    for rows in rows_of.values():
        weights[rows] = len(rows) * torch.softmax(values[rows] / beta, 0)
    return weights.to(device=rewards.device, dtype=torch.float32)
