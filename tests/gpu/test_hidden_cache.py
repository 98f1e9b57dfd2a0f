"""The cache of hidden states with a device budget: what spills comes back bit for bit."""

import pytest
import torch
from tests.gpu import needs

from opd.update.teacher_cache import SLAB_BYTES, HiddenCache

needs.devices(1, "spilling to pinned memory needs a CUDA device")

WIDTH = 4096
ROW_BYTES = WIDTH * 2  # bf16


def rows_of(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(n, WIDTH, device="cuda", generator=generator).bfloat16() for n in lengths]


@pytest.mark.parametrize("device_gib", [0.0, 0.004, 1.0])
def test_spilled_and_kept_rows_come_back_bit_for_bit(device_gib):
    lengths = [100, 7, 350, 1, 64]
    cache = HiddenCache(device_gib=device_gib, device=torch.device("cuda", 0))
    for _ in range(2):  # a second step reuses the pinned memory
        rows = rows_of(lengths)
        for number, hidden in enumerate(rows):
            cache.put(number, hidden.clone())
        assert cache.device_bytes <= device_gib * 2**30
        assert cache.device_bytes + cache.host_bytes == sum(lengths) * ROW_BYTES
        order = [3, 0, 4, 2, 1]
        fetched = cache.fetch(order)
        assert torch.equal(fetched(), torch.cat([rows[n] for n in order]))
        cache.clear()


def test_spilled_rows_leave_the_device():
    cache = HiddenCache(device_gib=0.0, device=torch.device("cuda", 0))
    before = torch.cuda.memory_allocated()
    for number in range(8):
        cache.put(number, torch.ones(1024, WIDTH, device="cuda", dtype=torch.bfloat16))
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # the allocator looks at freed blocks of other streams when it is asked again
    assert torch.cuda.memory_allocated() - before < 2 * 1024 * ROW_BYTES
    assert cache.host_bytes == 8 * 1024 * ROW_BYTES


def test_a_row_larger_than_a_slab_fits():
    rows = SLAB_BYTES // ROW_BYTES + 5
    cache = HiddenCache(device_gib=0.0, device=torch.device("cuda", 0))
    hidden = torch.arange(rows, device="cuda").bfloat16().unsqueeze(1).expand(rows, WIDTH).contiguous()
    cache.put(0, hidden)
    assert torch.equal(cache.fetch([0])(), hidden)
