"""The scaling of a gradient by a number that only the device knows."""

import threading

import pytest
import torch
from tests.gpu import needs

needs.hopper()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 1_000_003])
@pytest.mark.parametrize("factor", [1.0, -0.3])
def test_a_tensor_is_scaled_in_place_and_rounded_once(dtype, count, factor):
    from opd.losses.hopper.logits_kernel import scale_in_place

    values = torch.randn(count, device="cuda").to(dtype)
    expected = (values.float() * factor).to(dtype)
    scale_in_place(values, torch.tensor(factor, device="cuda"))
    assert torch.equal(values, expected)


def test_a_thread_that_has_asked_nothing_of_the_device_can_launch():
    """As autograd's does whose first work is the scaling of a gradient by a kernel that another thread has loaded."""
    from opd.losses.hopper.logits_kernel import scale_in_place

    values, factor = torch.ones(1000, device="cuda"), torch.tensor(2.0, device="cuda")
    scale_in_place(values, factor)
    torch.cuda.synchronize()
    thread = threading.Thread(target=scale_in_place, args=(values, factor))
    thread.start()
    thread.join()
    assert values.tolist() == [4.0] * 1000
