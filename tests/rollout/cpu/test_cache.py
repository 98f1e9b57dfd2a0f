import pytest
import torch

from opd.rollout.cpu.cache import PromptCache, RowCache, kv_bucket, prompt_bucket, row_attention


class Heads(torch.nn.Module):
    is_causal = True


def reference_attention(query, key, value, visible):
    """Softmax attention written out in float64; visible [Q, L] bool."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1).double() for tensor in (key, value))
    scores = query.double() @ key.transpose(2, 3) / query.shape[-1] ** 0.5
    return (scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value).transpose(1, 2)


def test_kv_buckets_are_powers_of_two_from_64():
    assert [kv_bucket(n) for n in (1, 64, 65, 128, 129, 5000)] == [64, 64, 128, 128, 256, 8192]


def test_prompt_buckets_pad_by_at_most_a_quarter_beyond_64_tokens():
    assert [prompt_bucket(n) for n in (1, 16, 17, 64, 65, 80, 81, 129, 1000)] == [16, 16, 32, 64, 80, 80, 96, 160, 1024]
    for num_tokens in range(1, 5000):
        bucket = prompt_bucket(num_tokens)
        assert num_tokens <= bucket <= max(num_tokens + 15, num_tokens * 1.25)
        assert prompt_bucket(bucket) == bucket


@pytest.mark.parametrize("num_heads", [2, 6])
def test_prefill_attention_is_causal(num_heads):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, num_heads, 9, 4), torch.randn(3, 2, 9, 4), torch.randn(3, 2, 9, 4)
    output, weights = row_attention(Heads(), query, key, value, None, scaling=0.5)
    assert weights is None
    expected = reference_attention(query, key, value, torch.ones(9, 9, dtype=torch.bool).tril())
    torch.testing.assert_close(output.double(), expected, atol=1e-6, rtol=0)


def test_decode_attention_reads_each_row_up_to_its_own_position():
    torch.manual_seed(0)
    cache = RowCache(num_rows=4, length=8, layer_shapes=[(2, 4)])
    cache.keys[0].normal_()
    cache.values[0].normal_()
    positions = torch.tensor([0, 3, 7, 0])
    mask = cache.set_positions(positions, num_used=3)
    query, new_key, new_value = torch.randn(4, 6, 1, 4), torch.randn(4, 2, 1, 4), torch.randn(4, 2, 1, 4)
    key, value = cache.update(new_key, new_value, 0)
    output, _ = row_attention(Heads(), query, key, value, mask, scaling=0.5)
    assert len(key) == len(value) == 3
    assert not output[3].any()
    for row, position in enumerate([0, 3, 7]):
        assert torch.equal(key[row, :, position], new_key[row, :, 0])
        visible = torch.arange(8)[None] <= position
        expected = reference_attention(query[row : row + 1], key[row : row + 1], value[row : row + 1], visible)
        torch.testing.assert_close(output[row : row + 1].double(), expected, atol=1e-6, rtol=0)


def test_the_cache_begins_on_a_cache_line_and_holds_zeros():
    for length in (64, 65, 4096):
        cache = RowCache(num_rows=3, length=length, layer_shapes=[(1, 5)] * 4)
        assert {tensor.data_ptr() % 64 for tensor in cache.keys + cache.values} == {0}
        assert not any(tensor.any() for tensor in cache.keys + cache.values)
        assert cache.keys[0].shape == (3, 1, length, 5)


def test_filling_a_row_leaves_the_others_alone():
    source = PromptCache()
    source.update(torch.full((2, 1, 4, 2), 5.0), torch.full((2, 1, 4, 2), 6.0), 0)
    cache = RowCache(num_rows=3, length=8, layer_shapes=[(1, 2)])
    cache.fill_row(1, source, 0, 3)
    assert cache.keys[0][1, 0, :, 0].tolist() == [5, 5, 5, 0, 0, 0, 0, 0]
    assert cache.values[0].sum() == 6.0 * 3 * 2
    assert cache.keys[0][[0, 2]].abs().sum() == 0


@pytest.mark.parametrize("extra", [{"sliding_window": 128}, {"softcap": 30.0}, {"s_aux": torch.zeros(2)}])
def test_attention_that_the_engine_does_not_have_is_refused(extra):
    tensor = torch.randn(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match="the CPU rollout has no attention with"):
        row_attention(Heads(), tensor, tensor, tensor, None, **extra)
