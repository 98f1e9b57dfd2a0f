"""A few numbers on their way from the device to the host, while the device works on."""

import torch
from torch import Tensor


class HostCopy:
    """Starts copying at once, behind the work queued so far; `read` waits for that work only, not for later work."""

    def __init__(self, values: Tensor) -> None:
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record()

    def read(self) -> Tensor:
        """The values, in host memory."""
        self._done.synchronize()
        return self._host
