"""The cache of the teacher's hidden states where there is only host memory (on a GPU: tests/gpu)."""

import pytest
import torch

from opd.update import teacher_cache as hidden_cache
from opd.update.step_metrics import cache_counts
from opd.update.teacher_cache import HiddenCache


def test_rows_come_back_in_the_order_asked_for():
    cache = HiddenCache(device_gib=0.0, device=torch.device("cpu"))
    rows = {row: torch.randn(row + 1, 8, generator=torch.Generator().manual_seed(row)) for row in range(4)}
    for row, hidden in rows.items():
        cache.put(row, hidden)
    assert torch.equal(cache.fetch([2, 0, 3]).ready(), torch.cat([rows[2], rows[0], rows[3]]))
    assert cache.device_bytes == (1 + 2 + 3 + 4) * 8 * 4
    assert cache.copied_bytes == 0


def test_a_kept_row_does_not_keep_the_micro_batch_it_was_cut_from():
    cache = HiddenCache(device_gib=0.0, device=torch.device("cpu"))
    whole = torch.randn(100, 8)
    cache.put(0, whole[:3])
    assert cache.fetch([0]).ready().untyped_storage().nbytes() == 3 * 8 * 4


def test_a_row_is_put_once_a_step():
    cache = HiddenCache(device_gib=0.0, device=torch.device("cpu"))
    cache.put(0, torch.zeros(2, 8))
    with pytest.raises(ValueError, match="row 0: its hidden states are in the cache already"):
        cache.put(0, torch.zeros(2, 8))
    cache.clear()
    cache.put(0, torch.ones(2, 8))
    assert torch.equal(cache.fetch([0]).ready(), torch.ones(2, 8))


def test_pieces_of_pinned_memory_do_not_overlap_and_are_used_again(monkeypatch):
    empty, slabs = torch.empty, []

    def not_pinned(size, *, dtype, pin_memory):
        slabs.append(empty(size, dtype=dtype))
        return slabs[-1]

    monkeypatch.setattr(hidden_cache, "SLAB_BYTES", 1024)
    monkeypatch.setattr(torch, "empty", not_pinned)
    cache = HiddenCache(device_gib=0.0, device=torch.device("cpu"))
    for _ in range(2):
        pieces = [cache._pinned(torch.zeros(length, 8)) for length in (3, 16, 8, 100)]  # 96, 512, 256 and 3200 bytes
        for number, piece in enumerate(pieces):
            piece.fill_(number)
        assert [(len(piece), *piece.unique().tolist()) for piece in pieces] == [
            (3, 0.0),
            (16, 1.0),
            (8, 2.0),
            (100, 3.0),
        ]
        cache.clear()
    assert [len(slab) for slab in slabs] == [1024, 3200]


def test_its_bytes_are_told_in_mib():
    cache = HiddenCache(device_gib=0.0, device=torch.device("cpu"))
    cache.device_bytes, cache.host_bytes, cache.copied_bytes = 2 * 2**20, 3 * 2**20, 5 * 2**20
    assert cache_counts(cache) == {
        "perf/teacher_cache_mb": 5,
        "perf/teacher_cache_host_mb": 3,
        "perf/teacher_cache_copied_mb": 5,
    }
