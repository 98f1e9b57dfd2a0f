"""The cache of the teacher's hidden states where there is only host memory (on a GPU: tests/gpu)."""

import pytest
import torch

from opd.update import teacher_cache as hidden_cache
from opd.update.teacher_cache import HiddenCache


@pytest.fixture
def cache() -> HiddenCache:
    return HiddenCache(device_gib=0.0, device=torch.device("cpu"))


def test_rows_come_back_in_the_order_asked_for_without_the_micro_batch_they_were_cut_from(cache):
    whole = torch.randn(100, 8)
    rows = dict(enumerate(whole[:10].split([1, 2, 3, 4])))
    for row, hidden in rows.items():
        cache.put(row, hidden)
    assert torch.equal(cache.fetch([2, 0, 3])(), torch.cat([rows[2], rows[0], rows[3]]))
    assert cache.fetch([2])().untyped_storage().nbytes() == 3 * 8 * 4
    assert (cache.device_bytes, cache.copied_bytes) == (10 * 8 * 4, 0)


def test_a_row_is_put_once_a_step(cache):
    cache.put(0, torch.zeros(2, 8))
    with pytest.raises(ValueError, match="row 0: its hidden states are in the cache already"):
        cache.put(0, torch.zeros(2, 8))
    cache.clear()
    cache.put(0, torch.ones(2, 8))
    assert torch.equal(cache.fetch([0])(), torch.ones(2, 8))


def test_pieces_of_pinned_memory_do_not_overlap_and_are_used_again(cache, monkeypatch):
    empty, slabs = torch.empty, []

    def not_pinned(size, *, dtype, pin_memory):
        slabs.append(empty(size, dtype=dtype))
        return slabs[-1]

    monkeypatch.setattr(hidden_cache, "SLAB_BYTES", 1024)
    monkeypatch.setattr(torch, "empty", not_pinned)
    for _ in range(2):
        pieces = [cache._pinned(torch.zeros(length, 8)) for length in (3, 16, 8, 100)]  # 96, 512, 256 and 3200 bytes
        for number, piece in enumerate(pieces):
            piece.fill_(number)
        assert [len(piece) for piece in pieces] == [3, 16, 8, 100]
        assert [piece.unique().tolist() for piece in pieces] == [[0.0], [1.0], [2.0], [3.0]]
        cache.clear()
    assert [len(slab) for slab in slabs] == [1024, 3200]
