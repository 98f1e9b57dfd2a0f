"""A frozen model's weights off the device: one copy on the host for good, and one on the device while the model reads.

What FSDP gathers at once (a layer, an embedding) is a unit. It arrives as one copy on a stream of its own while earlier layers
compute, and only its own forward waits for it. A copy begins only then: the device makes copies in their order, and a step's
token ids would wait for all that began before.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from opd.compat.host_copies import new_buffer

UNITS_AHEAD = 2
"""Units that are copied while one computes, where the model was not on the device before."""
ALIGNED = 256
"""Bytes between the beginnings of weights, as torch's own allocator has it."""


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return the one stream of a device, whose link all copies share."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


class _Unit:
    """The weights that FSDP gathers at once; `group` is FSDP's record of them. They begin on the host."""

    _there: Tensor | None = None
    """The copy on the device, if any."""
    _arrived: torch.cuda.Event | None = None
    """The end of the copying, until a stream has waited for it."""

    def __init__(self, module: Any, group: Any, device: torch.device) -> None:
        self.module, self._group, self._device, self._stream = module, group, device, _stream(device)
        module.reshard()
        self._places: list[slice] = []
        size = 0
        for weight in group.fsdp_params:
            weight.reset_sharded_param()  # so that the shard and FSDP's padded form of it share their memory
            end = size + weight._sharded_param_data.nbytes
            self._places.append(slice(size, end))
            size = -(-end // ALIGNED) * ALIGNED
        buffer = new_buffer(size, is_pinned=self._stream is not None)
        self._host = torch.empty(0, dtype=torch.uint8).set_(buffer)
        for weight, place in zip(group.fsdp_params, self._places, strict=True):
            self._host[place].view(weight._sharded_param_data.dtype).copy_(weight._sharded_param_data)
        self._point_at(self._host)

    def _point_at(self, buffer: Tensor) -> None:
        """Let FSDP and the module's parameters see `buffer`."""
        for weight, place in zip(self._group.fsdp_params, self._places, strict=True):
            flat = buffer[place].view(weight._sharded_param_data.dtype)
            shard = weight.sharded_param._local_tensor  # without FSDP's padding
            # New tensors: the old ones are views, and a view keeps its base alive with any `data`.
            weight.sharded_param._local_tensor = flat.as_strided(shard.size(), shard.stride(), flat.storage_offset())
            weight._sharded_param_data = flat

    def bring(self) -> None:
        """Begin to copy to the device when what is queued now has ended, unless the copy is there."""
        if self._there is not None:
            return
        # Memory of the stream that computes, which the student's phase takes next. The copy waits for who reads there still.
        self._there = torch.empty_like(self._host, device=self._device)
        if self._stream is None:
            self._there.copy_(self._host)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                self._there.copy_(self._host, non_blocking=True)
            self._arrived = self._stream.record_event()
        self._point_at(self._there)

    def wait(self) -> None:
        """Let what is queued from now on wait for the copy."""
        if self._arrived is not None:
            torch.cuda.current_stream(self._device).wait_event(self._arrived)
            self._group._wait_all_gather_streams_on_event(self._arrived)
            self._arrived = None

    def release(self) -> None:
        """Drop the copy, after what was queued before."""
        self.wait()  # for a copy that nothing has waited for
        self.module.reshard()
        self._point_at(self._host)
        self._there = None


class ParkedWeights:
    """This rank's shards of a model without gradients, whose parameters stay the same objects."""

    def __init__(self, module: nn.Module, device: torch.device):
        parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
        groups = [part._get_fsdp_state()._fsdp_param_group for part in parts]
        self._units = [_Unit(part, group, device) for part, group in zip(parts, groups, strict=True) if group]
        self._hooks = [
            unit.module.register_forward_pre_hook(functools.partial(self._before, number), prepend=True)
            for number, unit in enumerate(self._units)
        ]

    def load(self) -> None:
        """Bring all weights to the device for what is queued from now on."""
        self._take(self._units, self._units)

    def release(self) -> None:
        """Take the weights off the device, after what was queued before."""
        for unit in self._units:
            unit.release()

    def unpark(self) -> None:
        """Leave the weights on the device for good."""
        self.load()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for hook in self._hooks:
            hook.remove()

    def _before(self, number: int, *args: Any) -> None:
        """Bring the next units and wait for two, since verl's `forward_prefetch` gathers the next one too."""
        self._take(self._units[number : number + 1 + UNITS_AHEAD], self._units[number : number + 2])

    @staticmethod
    def _take(brought: list[_Unit], awaited: list[_Unit]) -> None:
        for unit in brought:
            unit.bring()
        for unit in awaited:
            unit.wait()
