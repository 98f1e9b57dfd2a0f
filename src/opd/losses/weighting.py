"""Token and row weights of the loss sum, which is divided once, by the global token count."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def token_weights(mask: Tensor, *, row_index: Tensor | None = None, row_weights: Tensor | None = None) -> Tensor:
    """Weight of each token in the loss sum: its row's weight where it is trained on, else 0.

    Args:
        mask: [N] True = trained on.
        row_index: [N] int64, the row of each token; needed with `row_weights`.
        row_weights: [B] one weight a row (`reward_weights`); None weighs every row 1. They are not renormalised here:
            normalised inside a micro-batch they would cancel.

    Returns:
        [N] float32 (float64 for float64 row weights).
    """
    if row_weights is None:
        return mask.to(torch.float32)
    if row_index is None:
        raise ValueError("row_index=None with row_weights: give the row of each token")
    return row_weights[row_index] * mask.to(row_weights.dtype)


def reward_weights(
    rewards: Tensor, uids: Sequence[str] | np.ndarray, *, beta: float, surviving: Tensor | None = None
) -> Tensor:
    """Row weights n softmax(r / beta) within each prompt's group of n surviving rows: mean 1 in every group.

    Args:
        rewards: [R] one scalar reward a row.
        uids: [R] the prompt each row answers; rows of one prompt share it.
        beta: softmax temperature, > 0; large is uniform, small puts all weight on the best rows.
        surviving: [R] bool, False = padding or dropped; such rows get weight 0 and their reward is not read.

    Returns:
        [R] float32 on the rewards' device. Rows without siblings get weight 1.

    Raises:
        ValueError: lengths differ, beta is not positive and finite, or a surviving row's reward is not finite.
    """
    if not 0.0 < beta < float("inf"):
        raise ValueError(f"reward_beta={beta!r}: must be positive and finite; leave it unset for equal weights")
    keep = torch.ones(len(rewards), dtype=torch.bool) if surviving is None else surviving.detach().bool().cpu()
    if not len(rewards) == len(uids) == len(keep):
        raise ValueError(f"rewards ({len(rewards)}), uids ({len(uids)}) and surviving ({len(keep)}): one entry a row")
    kept_rewards = rewards.detach().double().cpu()[keep]
    if not torch.isfinite(kept_rewards).all():
        bad = [str(uids[i]) for i in keep.nonzero().flatten()[~torch.isfinite(kept_rewards)].tolist()]
        raise ValueError(
            f"rewards: not finite for prompts {bad[:5]}; a failed scorer must give a number, or its row be dropped"
        )
    kept_uids = np.asarray(uids, dtype=object)[keep.numpy()].astype(str)
    _, group = np.unique(kept_uids, return_inverse=True)
    groups = torch.from_numpy(group.astype(np.int64))

    num_groups = int(groups.max()) + 1 if len(groups) else 0
    scaled = kept_rewards / beta
    top = torch.full((num_groups,), -torch.inf, dtype=torch.float64).scatter_reduce(0, groups, scaled, "amax")
    unnormalised = (scaled - top[groups]).exp()
    norm = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, groups, unnormalised)
    size = torch.bincount(groups, minlength=num_groups)
    weights = torch.zeros(len(rewards), dtype=torch.float64)
    weights[keep] = size[groups] * unnormalised / norm[groups]
    return weights.to(device=rewards.device, dtype=torch.float32)
