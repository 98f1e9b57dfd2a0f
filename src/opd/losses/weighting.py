"""Token and row weights of the loss sum, which is divided once, by the global token count."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def token_weights(mask: Tensor, *, row_index: Tensor | None = None, row_weights: Tensor | None = None) -> Tensor:
    """Return each token's weight [N] in the loss sum: its row's weight where `mask` [N] is True, else 0.

    Args:
        row_index: [N] int64, the row of each token; needed with `row_weights`.
        row_weights: [B] one weight a row. None weighs every row 1. Normalised inside a micro-batch they would cancel.
    """
    if row_weights is None:
        return mask.to(torch.float32)
    if row_index is None:
        raise ValueError("row_index=None with row_weights: give the row of each token")
    return row_weights[row_index] * mask.to(row_weights.dtype)


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
    if not torch.isfinite(values).all():
        bad = [str(uids[i]) for i in (~torch.isfinite(values)).nonzero().flatten().tolist()]
        raise ValueError(
            f"rewards: not finite for prompts {bad[:5]}; a failed scorer must give a number, or its row be dropped"
        )
    _, group = np.unique(np.asarray(uids, dtype=object).astype(str), return_inverse=True)
    groups = torch.from_numpy(group.astype(np.int64))
    size, scaled = torch.bincount(groups), values / beta
    top = torch.full((len(size),), -torch.inf, dtype=torch.float64).scatter_reduce(0, groups, scaled, "amax")
    unnormalised = (scaled - top[groups]).exp()
    norm = torch.zeros(len(size), dtype=torch.float64).index_add_(0, groups, unnormalised)
    return (size[groups] * unnormalised / norm[groups]).to(device=rewards.device, dtype=torch.float32)
