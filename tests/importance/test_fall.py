"""Where a rollout's signal ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opd.importance import select_tokens
from opd.importance.fall import SEGMENT_TOKENS, before_fall, end_of_signal


def steps(*levels: float, spread: float = 0.1) -> np.ndarray:
    """Scores of one segment a level, whose tokens lie `spread` above and below it."""
    around = np.resize([spread, -spread], SEGMENT_TOKENS)
    return np.concatenate([level + around for level in levels])


HIGH, LOW = [1.0, 1.2, 0.9, 1.1, 1.0], [0.2, 0.3, 0.1, 0.2]


def test_scores_that_fall_for_good_end_at_the_segment_in_which_they_are_lower():
    # Means 1.04 and 0.2: R0 = 1.640, R1 = 0.072, and 9 ln(R0 / R1) = 28.1 is more than 3 ln 9 = 6.6.
    assert end_of_signal(steps(*HIGH, *LOW)) == 5 * SEGMENT_TOKENS


def test_a_last_segment_that_is_cut_short_counts_as_one():
    assert end_of_signal(steps(*HIGH, *LOW)[:-15]) == 5 * SEGMENT_TOKENS


def test_a_fall_that_is_worth_less_than_its_parameters_is_none():
    # Means 1.04 and 0.975: R0 = 0.0889, R1 = 0.0795, and 9 ln(R0 / R1) = 1.0 is less than 6.6.
    scores = steps(*HIGH, 1.0, 1.1, 0.9, 0.9)
    assert end_of_signal(scores) == len(scores)


@pytest.mark.parametrize(
    "levels",
    [[*LOW, *HIGH], [0.5] * 12, [1.0, 0.2] * 6, [1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1], []],
    ids=["rises", "constant", "alternates", "shorter than eight segments", "empty"],
)
def test_a_rollout_without_a_fall_keeps_every_token(levels):
    scores = steps(*levels) if levels else np.zeros(0)
    assert end_of_signal(scores) == len(scores)


def test_of_equal_scores_within_segments_the_fall_is_seen_all_the_same():
    assert end_of_signal(steps(*[1.0] * 4, *[0.0] * 4, spread=0.0)) == 4 * SEGMENT_TOKENS


def test_a_score_that_is_not_finite_leaves_its_rollout_whole():
    scores = steps(*HIGH, *LOW)
    scores[3] = np.inf
    assert end_of_signal(scores) == len(scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_rollout_has_its_own_end_in_whatever_order_tokens_come(dtype):
    falls, rises = torch.tensor(steps(*HIGH, *LOW)), torch.tensor(steps(*LOW, *HIGH))
    scores = torch.stack([rises, falls], dim=1).flatten().to(dtype)  # token by token from both
    rows = torch.tensor([9, 4]).repeat(len(falls))
    found = before_fall(scores, rows)
    assert found[rows == 9].all()
    assert found[rows == 4].nonzero().flatten().tolist() == list(range(5 * SEGMENT_TOKENS))


@pytest.mark.parametrize(("ratio", "kept"), [(1.0, 80), (0.5, 73), (0.0, 0)])
def test_a_choice_keeps_what_is_ahead_of_the_fall_up_to_its_share_of_the_trained_tokens(ratio, kept):
    scores = torch.tensor(np.concatenate([[0.0, 0.0], steps(*HIGH, *LOW), [9.0]]))
    mask = torch.ones(len(scores), dtype=torch.bool)
    mask[[0, 1, -1]] = False
    scores = torch.cat([scores, scores.new_ones(3)])
    mask = torch.cat([mask, mask.new_ones(3)])  # trained, behind the fall: 147 in all
    rows = torch.zeros(len(scores), dtype=torch.int64)
    found = select_tokens(scores, mask=mask, row_index=rows, ratio=ratio, mode="before_fall")
    assert found.nonzero().flatten().tolist() == list(range(2, 2 + kept))


def test_all_rollouts_together_have_no_fall():
    one = torch.ones(1)
    with pytest.raises(ValueError, match="each rollout has a fall of its own"):
        select_tokens(one, mask=one.bool(), row_index=one.long(), ratio=1.0, mode="before_fall", scope="batch")
