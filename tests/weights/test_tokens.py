"""Scores and selections of tokens, and their metrics, against cases computed by hand."""

import pytest
import torch
from torch import tensor

from opd.experiment.algorithm import TokenImportance
from opd.weights.tokens import (
    TOKEN_SCORES,
    Tokens,
    choose_tokens,
    register_token_score,
    select_tokens,
    selection_metrics,
    soft_or,
)

SEED = (0,)


def kept_places(scores, ratio, row=None, **options) -> list[int]:
    scores = torch.as_tensor(scores, dtype=torch.float32)
    row = torch.zeros(len(scores), dtype=torch.int64) if row is None else tensor(row)
    selection = TokenImportance(score="entropy", ratio=ratio, **options)
    return select_tokens(scores, row, selection, seed=SEED).nonzero().flatten().tolist()


def scored(entropy, divergence, **clips) -> torch.Tensor:
    selection = TokenImportance(score="soft_or", **{"entropy_clip_q": 1.0} | clips)
    return soft_or(Tokens(selection, torch.zeros(len(entropy), dtype=torch.int64), entropy, divergence))


@pytest.mark.parametrize(
    ("entropy", "divergence", "clips", "expected"),
    [
        # h = 0, .25, .5, .75, 1 and d = 1, 0, .5, 0, .5: h + d - h d.
        ([0, 1, 2, 3, 4], [3, 1, 2, 1, 2], {}, [1.0, 0.25, 0.75, 0.75, 1.0]),
        # The 0.98 quantile of 0, 1, 2, 3, 100 is between neighbours, at place 3.92: 3 + 0.92 * 97 = 92.24.
        ([0, 1, 2, 3, 100], [0] * 5, {"entropy_clip_q": 0.98}, [0.0, *(n / 92.24 for n in (1, 2, 3, 92.24))]),
        # A token that is not finite is kept first, so that its update is skipped and its row named.
        ([0, 1, torch.nan, 2, 3], [0] * 5, {}, [0.0, 1 / 3, torch.inf, 2 / 3, 1.0]),
        ([], [], {}, []),
    ],
)
def test_soft_or_of_two_scaled_quantities(entropy, divergence, clips, expected):
    found = scored(tensor(entropy, dtype=torch.float32), tensor(divergence, dtype=torch.float32), **clips)
    torch.testing.assert_close(found, tensor(expected))


def test_one_outlier_of_the_divergence_presses_the_others_down_unless_it_is_clipped():
    divergence = torch.cat([torch.linspace(0, 1, 100), tensor([1e4])])
    crushed, clipped = (scored(torch.zeros(101), divergence, divergence_clip_q=q) for q in (None, 0.99))
    assert crushed[99] < 1e-3
    assert clipped[99] == clipped[100] == 1.0
    assert clipped[50] == pytest.approx(50 / 99)


@pytest.mark.parametrize(
    ("scores", "ratio", "options", "kept"),
    [
        ([], 0.5, {}, []),
        ([0.0, 1.0, torch.nan, 2.0], 0.25, {}, [2]),
        ([-1.0, -torch.inf, -2.0], 0.7, {}, [0, 2]),
        ([-1.0, -torch.inf, -2.0], 0.4, {"mode": "bottomk"}, [1]),
        # Among equal scores the earlier token is kept.
        ([1.0] * 4, 0.5, {}, [0, 1]),
        ([1.0] * 4, 0.5, {"mode": "bottomk"}, [0, 1]),
        ([1.0] * 4, 0.5, {"row": [5, 5, 2, 2]}, [0, 2]),
    ],
)
def test_the_highest_scores_are_kept(scores, ratio, options, kept):
    assert kept_places(scores, ratio, **options) == kept


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


THREE = {"entropy": tensor([0.0, 1.0, 2.0]), "divergence": tensor([2.0, 5.0, 9.0])}
ROWS = [0] * 4 + [1] * 6


@pytest.mark.parametrize(
    ("selection", "rows", "values", "kept"),
    [
        ({"score": "position"}, ROWS, {}, [0, 1, 4, 5, 6]),
        ({"score": "position", "position": "last"}, ROWS, {}, [2, 3, 7, 8, 9]),
        # h = 0, .5, 1: d (1 - h) = 2, 2.5, 0.
        ({"score": "q3", "entropy_clip_q": 1.0, "ratio": 0.34}, [0] * 3, THREE, [1]),
        ({"score": "entropy", "ratio": 0.34}, [0] * 3, THREE, [2]),
        ({"score": "divergence", "ratio": 0.67}, [0] * 3, THREE, [1, 2]),
        ({"score": "none"}, [0] * 3, {}, [0, 1, 2]),
    ],
)
def test_the_scores_rank_by_what_they_are_named_after(selection, rows, values, kept):
    found = choose_tokens(TokenImportance(**selection), tensor(rows), seed=SEED, **values)
    assert found.nonzero().flatten().tolist() == kept


def shortest_first(tokens: Tokens) -> torch.Tensor:
    """Score of a user's own: tokens of short responses first."""
    return -torch.bincount(tokens.row_index)[tokens.row_index].float()


def test_a_score_of_ones_own_is_a_function_named_in_the_experiment():
    selection = TokenImportance(score=f"{__name__}:shortest_first", ratio=0.5, scope="batch")
    kept = choose_tokens(selection, tensor([0, 0, 0, 1]), seed=SEED)
    assert (kept.tolist(), selection.needs_student, selection.needs_teacher) == ([True, False, False, True], True, True)
    with pytest.raises(ValueError, match="use one of random, position"):
        choose_tokens(TokenImportance.model_construct(score="nonsense"), tensor([0]), seed=SEED)


def test_a_token_is_sampled_alike_with_any_other_tokens():
    scores, row = torch.rand(60, generator=torch.manual_seed(1)), torch.arange(6).repeat_interleave(10)
    selection = TokenImportance(ratio=0.4, mode="sample")
    whole = select_tokens(scores, row, selection, seed=(11, 3))
    order = torch.tensor([4, 0, 5, 2, 1, 3])  # other ranks, other micro-batches, another order of rollouts
    for part in order.split(2):
        inside = torch.isin(row, part)
        assert torch.equal(select_tokens(scores[inside], row[inside], selection, seed=(11, 3)), whole[inside])
    other_seeds = [select_tokens(scores, row, selection, seed=seed) for seed in ((1, 3), (11, 1), (11, 2))]
    assert len({tuple(kept.tolist()) for kept in [whole, *other_seeds]}) == 4


def test_tokens_are_sampled_in_proportion_to_their_scores():
    # One of three a rollout, scores 1 : 2 : 5 over 4,000 rollouts: standard errors are at most 0.008.
    num_rows = 4000
    scores, row = tensor([1.0, 2.0, 5.0]).repeat(num_rows), torch.arange(num_rows).repeat_interleave(3)
    kept = select_tokens(scores, row, TokenImportance(ratio=0.34, mode="sample"), seed=(3,))
    shares = kept.view(num_rows, 3).double().mean(dim=0)
    torch.testing.assert_close(shares, tensor([1 / 8, 2 / 8, 5 / 8]).double(), rtol=0, atol=0.03)


def test_metrics_are_shares_quadrants_and_quantiles():
    # Medians 2.5 and 0.5: tokens 3, 4, 5 have high entropy, tokens 0, 3, 5 a high divergence.
    kept, row = tensor([True, False, False, True, False, False]), tensor([0, 0, 0, 0, 0, 8])
    entropy, divergence = tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), tensor([2.0, 0.0, 0.5, 4.0, 0.5, 1.0])
    shares = {"selected": 2 / 6, "rollouts_without": 1.0}
    assert selection_metrics(kept, row, {}) == pytest.approx(shares)
    assert selection_metrics(kept, row, {"entropy": entropy, "divergence": divergence}) == pytest.approx(
        shares
        | {"entropy_p50": 2.5, "entropy_p90": 4.5, "entropy_p98": 4.9}
        | {"divergence_p50": 0.75, "divergence_p90": 3.0, "divergence_p98": 3.8, "divergence_covered": 6 / 8}
        | {"q1": 2 / 6, "q1_selected": 1 / 2, "q2": 1 / 6, "q2_selected": 0.0}
        | {"q3": 1 / 6, "q3_selected": 1 / 2, "q4": 2 / 6, "q4_selected": 0.0}
    )
    assert selection_metrics(kept[:0], row[:0], {}) == {}


def test_a_registered_score_stays_the_function_that_it_was(monkeypatch):
    monkeypatch.setattr("opd.weights.tokens.TOKEN_SCORES", dict(TOKEN_SCORES))

    @register_token_score("mine")
    def mine(tokens: Tokens):
        return tokens.entropy

    assert callable(mine)
    assert mine.__name__ == "mine"


def test_quantities_that_a_score_does_not_need_are_empty():
    assert [each.tolist() for each in Tokens(TokenImportance(), torch.zeros(3))[2:]] == [[], []]
