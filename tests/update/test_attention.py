"""Attention of packed rows without processes, and models that ranks can share."""

import itertools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3Config
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from opd.update.attention import causal_within_rows, check_shareable, packed_sdpa
from opd.update.engines import StudentEngine


def test_positions_reach_the_layers_as_no_view_of_other_ranks_tokens(monkeypatch):
    # A layer compiled for a view is compiled again for each shape and offset of what is viewed.
    whole = torch.arange(10)[None]
    own = {"input_ids": whole[:, 5:], "position_ids": whole[:, 5:]}
    monkeypatch.setattr(FSDPEngineWithLMHead, "prepare_model_inputs", lambda self, micro_batch: (dict(own), {}))
    engine = object.__new__(StudentEngine)  # the method alone: an engine needs a process group and a model
    engine.use_remove_padding = False
    rows = torch.nested.as_nested_tensor([torch.arange(4), torch.arange(6)], layout=torch.jagged)
    inputs, _ = engine.prepare_model_inputs({"input_ids": rows})
    assert own["position_ids"]._base is not None
    assert inputs["position_ids"]._base is None
    assert inputs["position_ids"].tolist() == [[5, 6, 7, 8, 9]]


BOUNDS = torch.tensor([0, 3, 4, 9])


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
    ("attention", "changes", "num_ranks", "words"),
    [
        (
            "sdpa",
            {},
            3,
            r"student S: ulysses_sequence_parallel_size=3 does not divide its 8 attention heads \(2 for keys",
        ),
        ("sdpa", {"num_attention_heads": 12, "num_key_value_heads": 4}, 6, r"12 attention heads \(4 for keys"),
        ("sdpa", {"layer_types": ["full_attention", "linear_attention"]}, 2, "it has linear_attention"),
        ("eager", {}, 2, "needs attn_implementation varlen or sdpa, got eager"),
    ],
)
def test_what_ranks_cannot_share_is_refused_by_name(attention, changes, num_ranks, words):
    config = _config(**changes)
    config._attn_implementation = attention
    with pytest.raises(ValueError, match=words):
        check_shareable(config, num_ranks, "student S")
