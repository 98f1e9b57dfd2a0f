"""Scores and selections of tokens, against cases computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from opd.experiment.algorithm import TokenImportance
from opd.weights import choose_tokens, select_tokens, soft_or_scores
from opd.weights.counter import step_seed
from opd.weights.tokens import Tokens, normalised

ALL = torch.ones(5, dtype=torch.bool)


def kept_places(scores, ratio, row=None, mask=None, **options) -> list[int]:
    scores = torch.as_tensor(scores, dtype=torch.float32)
    row = torch.zeros(len(scores), dtype=torch.int64) if row is None else tensor(row)
    mask = torch.ones(len(scores), dtype=torch.bool) if mask is None else tensor(mask)
    kept = select_tokens(scores, mask=mask, row_index=row, ratio=ratio, **options)
    return kept.nonzero().flatten().tolist()


def test_soft_or_of_two_quantities_without_a_clip():
    # h = 0, .25, .5, .75, 1 and d = 1, 0, .5, 0, .5: h + d - h d.
    entropy, divergence = tensor([0.0, 1.0, 2.0, 3.0, 4.0]), tensor([3.0, 1.0, 2.0, 1.0, 2.0])
    scores = soft_or_scores(entropy, divergence, mask=ALL, entropy_clip_q=None)
    torch.testing.assert_close(scores, tensor([1.0, 0.25, 0.75, 0.75, 1.0]))


def test_the_entropys_clip_is_the_quantile_between_neighbours():
    # The 0.98 quantile of 0, 1, 2, 3, 100 lies at place 3.92: 3 + 0.92 * 97 = 92.24.
    entropy = tensor([0.0, 1.0, 2.0, 3.0, 100.0])
    scores = soft_or_scores(entropy, torch.zeros(5), mask=ALL)
    torch.testing.assert_close(scores, tensor([0.0, 1.0, 2.0, 3.0, 92.24]) / 92.24)


def test_one_outlier_of_the_divergence_presses_the_others_down_unless_it_is_clipped():
    divergence = torch.cat([torch.linspace(0, 1, 100), tensor([1e4])])
    mask = torch.ones(101, dtype=torch.bool)
    crushed = soft_or_scores(torch.zeros(101), divergence, mask=mask)
    clipped = soft_or_scores(torch.zeros(101), divergence, mask=mask, divergence_clip_q=0.99)
    assert crushed[99] < 1e-3
    assert clipped[99] == clipped[100] == 1.0
    assert clipped[50] == pytest.approx(50 / 99)


def test_masked_tokens_neither_set_the_scale_nor_score():
    mask = tensor([True, True, False, True])
    scores = soft_or_scores(tensor([0.0, 1.0, 9.0, 2.0]), torch.zeros(4), mask=mask, entropy_clip_q=None)
    assert scores.tolist() == [0.0, 0.5, 0.0, 1.0]


def test_without_a_trained_token_nothing_is_scored_or_kept():
    none = torch.zeros(5, dtype=torch.bool)
    scores = soft_or_scores(torch.rand(5), torch.rand(5), mask=none)
    assert scores.tolist() == [0.0] * 5
    for scope in ("rollout", "batch"):
        assert not kept_places(scores, 1.0, mask=none.tolist(), scope=scope)
    assert not kept_places([], 0.5)


def test_a_token_that_is_not_finite_is_kept_first_so_that_its_update_is_skipped_and_named():
    entropy = tensor([0.0, 1.0, float("nan"), 2.0, 3.0])
    scores = soft_or_scores(entropy, torch.zeros(5), mask=ALL, entropy_clip_q=None)
    torch.testing.assert_close(scores, tensor([0.0, 1 / 3, torch.inf, 2 / 3, 1.0]))
    assert kept_places(scores, 0.2) == [2]
    assert kept_places(entropy, 0.2) == [2]


def test_a_score_of_minus_infinity_is_the_worst_one():
    scores = [-1.0, float("-inf"), -2.0]
    assert kept_places(scores, 0.7) == [0, 2]
    assert kept_places(scores, 0.4, mode="bottomk") == [1]


def test_topk_keeps_the_floor_of_the_share_of_each_rollout():
    # 5 tokens and 3: floor(2.5) = 2 and floor(1.5) = 1.
    scores, row = [0.1, 0.9, 0.5, 0.7, 0.2, 9.0, 7.0, 8.0], [4, 4, 4, 4, 4, 1, 1, 1]
    assert kept_places(scores, 0.5, row) == [1, 3, 5]
    assert kept_places(scores, 0.5, row, scope="batch") == [1, 5, 6, 7]
    assert kept_places(scores, 0.5, row, mode="bottomk") == [0, 4, 6]


@pytest.mark.parametrize("mode", ["topk", "bottomk", "sample"])
@pytest.mark.parametrize("scope", ["rollout", "batch"])
def test_ratio_0_keeps_nothing_and_ratio_1_everything(mode, scope):
    scores, row = torch.rand(6), [0, 0, 1, 1, 1, 2]
    assert kept_places(scores, 0.0, row, mode=mode, scope=scope) == []
    assert kept_places(scores, 1.0, row, mode=mode, scope=scope) == list(range(6))


@pytest.mark.parametrize(
    ("ratio", "num_tokens", "num_kept"), [(0.29, 100, 29), (0.1, 30, 3), (0.7, 10, 7), (1 / 3, 3, 0)]
)
def test_the_floor_is_that_of_the_ratio_as_written(ratio, num_tokens, num_kept):
    # 0.29 * 100 is 28.999999999999996 in floats; 1/3 is written 0.3333333333333333, a little less than a third.
    assert len(kept_places(torch.rand(num_tokens), ratio)) == num_kept


@pytest.mark.parametrize("mode", ["topk", "bottomk"])
def test_among_equal_scores_the_earlier_token_is_kept(mode):
    assert kept_places([1.0, 1.0, 1.0, 1.0], 0.5, mode=mode) == [0, 1]
    assert kept_places([1.0, 1.0, 1.0, 1.0], 0.5, [5, 5, 2, 2], mode=mode) == [0, 2]


def test_position_keeps_the_first_or_the_last_share():
    row = tensor([0] * 4 + [1] * 6)
    first = choose_tokens(TokenImportance(score="position", ratio=0.5), row, seed=0)
    last = choose_tokens(TokenImportance(score="position", ratio=0.5, position="last"), row, seed=0)
    assert first.nonzero().flatten().tolist() == [0, 1, 4, 5, 6]
    assert last.nonzero().flatten().tolist() == [2, 3, 7, 8, 9]


def test_q3_ranks_by_the_divergence_of_tokens_that_the_student_is_sure_of():
    # h = 0, .5, 1: d (1 - h) = 2, 2.5, 0.
    selection = TokenImportance(score="q3", entropy_clip_q=1.0, ratio=0.34)
    values = {"entropy": tensor([0.0, 1.0, 2.0]), "divergence": tensor([2.0, 5.0, 9.0])}
    assert choose_tokens(selection, torch.zeros(3, dtype=torch.int64), seed=0, **values).tolist() == [
        False,
        True,
        False,
    ]


def shortest_first(tokens: Tokens) -> torch.Tensor:
    """Score of a user's own: tokens of short responses first."""
    return -torch.bincount(tokens.row_index)[tokens.row_index].float()


def test_a_score_of_ones_own_is_a_function_named_in_the_experiment():
    selection = TokenImportance(score=f"{__name__}:shortest_first", ratio=0.5, scope="batch")
    kept = choose_tokens(selection, tensor([0, 0, 0, 1]), seed=0)
    assert (kept.tolist(), selection.needs_student, selection.needs_teacher) == ([True, False, False, True], True, True)
    with pytest.raises(ValueError, match="must be one of random, position"):
        choose_tokens(TokenImportance.model_construct(score="nonsense"), tensor([0]), seed=0)


@pytest.mark.parametrize("score", ["entropy", "divergence"])
def test_the_plain_scores_rank_by_what_they_are_named_after(score):
    values = {score: tensor([1.0, 3.0, 2.0, 0.0])}
    kept = choose_tokens(TokenImportance(score=score), torch.zeros(4, dtype=torch.int64), seed=0, **values)
    assert kept.nonzero().flatten().tolist() == [1, 2]


@pytest.mark.parametrize("score", ["entropy", "divergence", "soft_or", "q3"])
def test_a_score_without_what_it_needs_is_refused(score):
    with pytest.raises(ValueError, match=f"score='{score}'"):
        choose_tokens(TokenImportance(score=score), torch.zeros(4, dtype=torch.int64), seed=0)


def test_a_token_is_sampled_alike_whatever_it_is_batched_with():
    scores, row = torch.rand(60, generator=torch.manual_seed(1)), torch.arange(6).repeat_interleave(10)
    mask = torch.ones(60, dtype=torch.bool)
    options = {"ratio": 0.4, "mode": "sample", "seed": 11}
    whole = select_tokens(scores, mask=mask, row_index=row, **options)
    order = torch.tensor([4, 0, 5, 2, 1, 3])  # other ranks, other micro-batches, another order of rollouts
    for part in order.split(2):
        inside = torch.isin(row, part)
        alone = select_tokens(scores[inside], mask=mask[inside], row_index=row[inside], **options)
        assert torch.equal(alone, whole[inside])
    other_seeds = [select_tokens(scores, mask=mask, row_index=row, **options | {"seed": seed}) for seed in range(3)]
    assert len({tuple(kept.tolist()) for kept in other_seeds}) == 3


def test_tokens_are_sampled_in_proportion_to_their_scores():
    # One of three a rollout, scores 1 : 2 : 5 over 4,000 rollouts: standard errors are at most 0.008.
    num_rows = 4000
    row = torch.arange(num_rows).repeat_interleave(3)
    kept = select_tokens(
        tensor([1.0, 2.0, 5.0]).repeat(num_rows),
        mask=torch.ones(3 * num_rows, dtype=torch.bool),
        row_index=row,
        ratio=0.34,
        mode="sample",
        seed=3,
    )
    shares = kept.view(num_rows, 3).double().mean(dim=0)
    torch.testing.assert_close(shares, tensor([1 / 8, 2 / 8, 5 / 8]).double(), rtol=0, atol=0.03)


def test_the_seeds_of_steps_differ():
    assert len({step_seed(1, step) for step in range(100)} | {step_seed(2, step) for step in range(100)}) == 200


def test_a_quantile_outside_of_0_and_1_is_refused():
    with pytest.raises(ValueError, match=r"q=1\.5"):
        normalised(torch.rand(3), mask=ALL[:3], clip_q=1.5)
