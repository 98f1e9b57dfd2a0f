import pytest
import torch

from opd.rollout.cpu.cache import RowCache, row_attention


class Heads(torch.nn.Module):
    is_causal = True


def reference_attention(query, key, value, visible):
    """Softmax attention written out in float64; visible [Q, L] bool."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1).double() for tensor in (key, value))
    scores = query.double() @ key.transpose(2, 3) / query.shape[-1] ** 0.5
    return (scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value).transpose(1, 2)


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
