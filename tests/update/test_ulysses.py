"""Shared sequences without processes: the mask of packed rows, which models can be shared, whose hidden states are where."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3Config

from opd.batch import LossPositions
from opd.update.teacher_cache import Fetch
from opd.update.teacher_phase import Holders, Regrouped
from opd.update.ulysses import Slice, causal_within_rows, check_shareable, packed_sdpa

BOUNDS = torch.tensor([0, 3, 4, 9])


def _slice(rank: int, num_tokens: int = 5) -> Slice:
    return Slice(group=None, rank=rank, size=2, num_tokens=num_tokens)  # type: ignore[arg-type]  # no exchange is made


def _positions(flat_index: list[int], rows: list[int]) -> LossPositions:
    places = torch.tensor(flat_index)
    return LossPositions(places, 100 + places, torch.ones(len(rows), dtype=torch.bool), torch.tensor(rows))


def test_a_packed_token_sees_its_own_row_up_to_itself():
    mask = causal_within_rows(BOUNDS, 9)[0, 0]
    rows = [0, 0, 0, 1, 2, 2, 2, 2, 2]
    expected = [[rows[i] == rows[j] and j <= i for j in range(9)] for i in range(9)]
    assert mask.tolist() == expected


@pytest.mark.parametrize("window", [None, 2])
def test_packed_attention_is_each_rows_own(window):
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 9, 8, dtype=torch.float64) for heads in (4, 2, 2))
    mask = causal_within_rows(BOUNDS, 9)
    out, _ = packed_sdpa(
        torch.nn.Identity(), query, key, value, None, row_mask=mask, scaling=0.3, sliding_window=window
    )
    assert out.shape == (1, 9, 4, 8)
    for start, stop in itertools.pairwise(BOUNDS.tolist()):
        row = [states[:, :, start:stop] for states in (query, key, value)]
        seen = torch.ones(stop - start, stop - start, dtype=torch.bool).tril()
        if window is not None:
            seen = seen.triu(1 - window)
        alone = scaled_dot_product_attention(*row, attn_mask=seen, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(out[:, start:stop], alone.transpose(1, 2))


def _config(**changes) -> Qwen3Config:
    config = Qwen3Config(num_hidden_layers=2, **({"num_attention_heads": 8, "num_key_value_heads": 2} | changes))
    config._attn_implementation = "sdpa"
    return config


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_ranks_that_divide_the_heads_can_share_them(num_ranks):
    check_shareable(_config(), num_ranks, "student S")


@pytest.mark.parametrize(
    ("config", "num_ranks", "words"),
    [
        (
            _config(),
            3,
            r"student S: ulysses_sequence_parallel_size=3 does not divide its 8 attention heads \(2 for keys",
        ),
        (_config(num_attention_heads=12, num_key_value_heads=4), 6, r"12 attention heads \(4 for keys"),
        (_config(layer_types=["full_attention", "linear_attention"]), 2, "it has linear_attention"),
    ],
)
def test_what_ranks_cannot_share_is_refused_by_name(config, num_ranks, words):
    with pytest.raises(ValueError, match=words):
        check_shareable(config, num_ranks, "student S")


def test_an_attention_without_an_exchange_is_refused():
    config = _config()
    config._attn_implementation = "eager"
    with pytest.raises(ValueError, match="needs attn_implementation varlen or sdpa, got eager"):
        check_shareable(config, 2, "teacher T")


def test_the_slices_of_all_ranks_are_the_positions_each_once():
    found = _positions([1, 2, 4, 5, 8], [0, 0, 1, 1, 1])
    (first, is_first), (second, is_second) = (_slice(rank).select(found) for rank in (0, 1))
    assert first.flat_index.tolist() == [1, 2, 4]
    assert second.flat_index.tolist() == [0, 3]
    assert second.token_ids.tolist() == [105, 108]
    assert second.row.tolist() == [1, 1]
    assert torch.equal(is_first, ~is_second)


def test_who_holds_a_row_is_known_in_any_later_order_of_rows():
    holders = [Holders(), Holders()]
    found = _positions([1, 2, 4, 5, 8], [0, 0, 1, 1, 1])
    counts = [mine.note([7, 3], found, _slice(rank)) for rank, mine in enumerate(holders)]
    assert counts == [[2, 1], [0, 2]]
    for mine in holders:
        assert mine.of([3, 7]).tolist() == [0, 1, 1, 0, 0]
        assert mine.of([7]).tolist() == [0, 0]


def test_hidden_states_that_lie_where_they_are_read_are_not_exchanged():
    cached = torch.randn(2, 4)
    held = torch.tensor([0, 0, 1])
    assert Regrouped(Fetch(cached, None), held, held.clone(), _slice(0)).ready() is cached
