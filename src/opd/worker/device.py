"""What a rank computes on, as it calls itself: told to the readers of a run."""

from __future__ import annotations

import torch
from verl.single_controller.base.decorator import Dispatch, register


class NamedDevice:
    """Mixin of workers, before verl's."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def tell_device(self) -> str:
        """`NVIDIA H200`; `CPU` without a GPU."""
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
