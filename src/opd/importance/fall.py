"""Where a rollout's signal ends: the place behind which its scores are lower for good.

After local teachability collapse (https://arxiv.org/abs/2605.13643, by its abstract): scores are averaged over segments, and
training stops where a change to a lower mean is worth its parameters by the Bayesian information criterion. The paper's
signal is the teacher's margin over the student's likeliest tokens and its segments are sentences; here the signal is the
selection's score and a segment a number of tokens, which need no tokenizer.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opd.importance.rows import places

SEGMENT_TOKENS = 16
LEAST_SEGMENTS = 4
"""On either side of a fall: the spread of fewer says nothing."""


def before_fall(scores: Tensor, row_index: Tensor) -> Tensor:
    """Which tokens of each rollout lie ahead of the fall of its scores; a rollout without a fall has all of its own.

    Args:
        scores: [T] of any float dtype. A rollout with a score that is not finite has no fall.
        row_index: [T] int64, a number of each token's rollout.

    Returns:
        [T] bool, True up to the segment in which the lower mean begins.
    """
    _, numbers, counts = row_index.cpu().unique(return_inverse=True, return_counts=True)
    values = scores.detach().double().cpu().numpy()
    order = numbers.argsort(stable=True).numpy()
    rows = np.split(values[order], counts.cumsum(0)[:-1].numpy())
    ends = torch.tensor([end_of_signal(row) for row in rows], dtype=torch.int64)
    return places(row_index)[0] < ends[numbers].to(row_index.device)


def end_of_signal(scores: NDArray[np.float64]) -> int:
    """Tokens of one rollout ahead of the fall of its scores; all of them where there is none.

    With S segments of residual sum of squares R0 around one mean and R1 around two (each segment counts alike, also a
    shorter last one), there is a fall where S ln(R0 / R1) > 3 ln S: the criterion of Zhang and Siegmund 2007, in which a
    place that was searched costs more than a parameter. Where there is none it finds one in 0 to 3 % of rollouts (independent
    scores, normal to log-normal, 8 to 100 segments).

    Args:
        scores: [N] of a rollout's trained tokens, in their order.
    """
    if not np.isfinite(scores).all():
        return len(scores)
    starts = np.arange(0, len(scores), SEGMENT_TOKENS)
    num_segments = len(starts)
    if num_segments < 2 * LEAST_SEGMENTS:
        return len(scores)
    means = np.add.reduceat(scores, starts) / np.diff(starts, append=len(scores))
    first = np.arange(LEAST_SEGMENTS, num_segments - LEAST_SEGMENTS + 1)  # how many segments are ahead of the place
    sums, total = means.cumsum()[first - 1], means.sum()
    ahead, behind = sums / first, (total - sums) / (num_segments - first)
    # R0 - R1 of each place: what the two means explain.
    explained = first * (num_segments - first) / num_segments * (ahead - behind) ** 2
    explained[ahead <= behind] = 0.0
    place = int(explained.argmax())
    around_one = float(((means - means.mean()) ** 2).sum())
    around_two = max(around_one - float(explained[place]), float(np.finfo(np.float64).eps) * around_one)
    if around_one == 0.0 or num_segments * np.log(around_one / around_two) <= 3 * np.log(num_segments):
        return len(scores)
    return int(starts[first[place]])
