"""What sizes the matrix products of a piece of code have, seen as torch dispatches them."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class ProductSizes(TorchDispatchMode):
    """While active, `sizes` gathers every dimension of both factors of every `mm` and `addmm`."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            first = 0 if func.overloadpacket is torch.ops.aten.mm else 1
            for factor in args[first : first + 2]:
                self.sizes |= set(factor.shape)
        return func(*args, **(kwargs or {}))
