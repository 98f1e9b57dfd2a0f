"""GRPO's advantages of a step's rows, by verl's own function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn


def group_advantages(scores: Tensor, uids: Sequence[str] | np.ndarray, *, by_std: bool) -> Tensor:
    """[R] float32: each row's score less its prompt's mean and, `by_std`, over its prompt's standard deviation.

    Args:
        scores: [R] one scalar a row.
        uids: [R] the prompt each row answers. A row without siblings, those that failed left out, has nothing to be
            compared with: 0, where verl keeps its score.
    """
    rewards = scores.detach().float().clone()[:, None]
    found, _ = get_adv_estimator_fn("grpo")(
        token_level_rewards=rewards,
        response_mask=torch.ones_like(rewards),
        index=np.asarray(uids, dtype=object),
        norm_adv_by_std_in_grpo=by_std,
    )
    _, numbers, sizes = np.unique(np.asarray(uids, dtype=str), return_inverse=True, return_counts=True)
    advantages: Tensor = found[:, 0].masked_fill(torch.from_numpy(sizes[numbers] == 1), 0.0)
    return advantages
