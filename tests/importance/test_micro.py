"""The choice that is asked while tokens are still scored keeps what the choice among all of them keeps."""

import itertools

import pytest
import torch

from opd.config.algorithm import TokenImportance
from opd.importance import choose_tokens
from opd.importance.micro import MicroBatchChoice

SIZES = (3, 13, 1, 40, 6)
SCORES = ("entropy", "entropy_length", "divergence", "soft_or", "q3")


def scores_and_rows():
    generator = torch.Generator().manual_seed(1)
    num_tokens = sum(SIZES)
    entropy, divergence = (torch.rand(num_tokens, generator=generator) for _ in range(2))
    entropy[7] = entropy[8]  # a tie
    divergence[20], entropy[50] = torch.nan, torch.inf
    rows = torch.tensor([9, 4, 12, 0, 7]).repeat_interleave(torch.tensor(SIZES))
    return {"entropy": entropy, "divergence": divergence}, rows


def cut(scores, start, stop):
    return {name: values[start:stop] for name, values in scores.items()}


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("mode", ["topk", "bottomk", "sample"])
@pytest.mark.parametrize("scope", ["rollout", "batch"])
@pytest.mark.parametrize("score", SCORES)
def test_it_keeps_what_is_kept_among_all_tokens(score, scope, mode, ratio):
    selection = TokenImportance(score=score, ratio=ratio, normalize="micro", scope=scope, mode=mode)
    scores, rows = scores_and_rows()
    choice = MicroBatchChoice(selection, rows, seed=5)
    kept = choice.kept(0, len(rows), **scores)
    assert torch.equal(kept, choose_tokens(selection, rows, seed=5, **scores))
    assert choice.num_kept(0, len(rows)) == int(kept.sum())


@pytest.mark.parametrize("mode", ["topk", "bottomk", "sample"])
@pytest.mark.parametrize("score", ["entropy", "divergence"])
def test_rollouts_that_settle_may_be_asked_for_one_by_one(score, mode):
    selection = TokenImportance(score=score, ratio=0.4, normalize="micro", mode=mode)
    scores, rows = scores_and_rows()
    choice = MicroBatchChoice(selection, rows, seed=5)
    assert choice.settles
    parts = [choice.kept(a, b, **cut(scores, a, b)) for a, b in itertools.pairwise([0, *choice.ends])]
    assert torch.equal(torch.cat(parts), choice.kept(0, len(rows), **scores))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("most", [2, 9, 60])
def test_likely_tokens_are_no_more_than_there_is_room_for(score, most):
    selection = TokenImportance(score=score, ratio=0.4, normalize="micro")
    scores, rows = scores_and_rows()
    choice = MicroBatchChoice(selection, rows, seed=5)
    for stop in (1, 10, 17, 30, len(rows)):
        likely = choice.likely(0, stop, most, **cut(scores, 0, stop))
        assert len(likely) == stop
        assert int(likely.sum()) <= most


def test_likely_tokens_of_whole_rollouts_that_settle_are_the_kept_ones():
    selection = TokenImportance(score="divergence", ratio=0.4, normalize="micro")
    scores, rows = scores_and_rows()
    choice = MicroBatchChoice(selection, rows, seed=5)
    stop = choice.ends[2]
    assert torch.equal(choice.likely(0, stop, 50, **cut(scores, 0, stop)), choice.kept(0, len(rows), **scores)[:stop])


def test_a_rollout_in_two_places_is_refused_by_its_number():
    selection = TokenImportance(score="entropy", ratio=0.4, normalize="micro")
    with pytest.raises(ValueError, match="the tokens of rollout 3 lie apart"):
        MicroBatchChoice(selection, torch.tensor([3, 3, 5, 3]), seed=0)
