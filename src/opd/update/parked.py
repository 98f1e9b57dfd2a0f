"""A frozen model's weights off the device: one copy on the host for good, and one on the device while the model reads.

What FSDP gathers at once (a layer, an embedding) is a unit. It arrives as one copy from pinned memory on a stream of its own while
earlier layers compute, and only its own forward waits for it. A copy begins only then: the device makes copies in their order, and
a step's token ids would wait for all that began before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from opd.compat.host_copies import new_buffer

UNITS_AHEAD = 2
"""That come while a unit computes, where the model was not there before: on an H100 a layer of 8B takes 8 ms to come and 12 to read 32,768 tokens."""
ALIGNED = 256
"""Bytes between the beginnings of weights, as torch's own allocator has it."""


@dataclass(kw_only=True)
class _Unit:
    """The weights that FSDP gathers at once.

    Attributes:
        module: whose forward gathers them. group: FSDP's record of them. host: their bytes, each weight's at its place of `places`.
        there: their copy on the device, if any. arrived: the event that ends the copy, until a stream has waited for it.
    """

    module: Any
    group: Any
    places: list[slice]
    host: Tensor
    there: Tensor | None = None
    arrived: torch.cuda.Event | None = None

    def point_at(self, buffer: Tensor) -> None:
        """Let FSDP and the module's parameters see `buffer`."""
        for weight, place in zip(self.group.fsdp_params, self.places, strict=True):
            flat = buffer[place].view(weight._sharded_param_data.dtype)
            local = weight.sharded_param._local_tensor  # the shard without FSDP's padding
            # New tensors: the old ones are views, and a view keeps its base's memory whatever its `data` is set to.
            weight.sharded_param._local_tensor = flat.as_strided(local.size(), local.stride(), flat.storage_offset())
            weight._sharded_param_data = flat


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_shards(module: nn.Module) -> dict[str, Tensor]:
    """Return this rank's part of each sharded weight by name; the DTensor around a parked one says that it is on the device."""
    with torch.no_grad():
        weights = module.state_dict(keep_vars=True)  # sharded, whatever was gathered
        return {name: local(weight).detach() for name, weight in weights.items()}


class ParkedWeights:
    """This rank's shards of a model without gradients, whose parameters stay the same objects."""

    def __init__(self, module: nn.Module, device: torch.device):
        self._device = device
        self._stream = _stream(device) if device.type == "cuda" else None
        self._units = list(_units(module, pinned=self._stream is not None))
        self._hooks = [
            unit.module.register_forward_pre_hook(functools.partial(self._before, number), prepend=True)
            for number, unit in enumerate(self._units)
        ]

    def load(self) -> None:
        """Bring all weights to the device for what is queued from now on."""
        for unit in self._units:
            self._bring(unit)
        for unit in self._units:
            self._await(unit)

    def release(self) -> None:
        """Take the weights off the device, after what was queued before."""
        for unit in self._units:
            self._await(unit)  # a copy that nothing has waited for
            unit.module.reshard()
            unit.point_at(unit.host)
            unit.there = None

    def unpark(self) -> None:
        """Leave the weights on the device for good."""
        self.load()
        if self._stream is not None:
            self._stream.synchronize()
        for hook in self._hooks:
            hook.remove()

    def _before(self, number: int, *args: Any) -> None:
        """Bring the next units and wait for two, since verl's `forward_prefetch` gathers the next one too."""
        for unit in self._units[number : number + 1 + UNITS_AHEAD]:
            self._bring(unit)
        for unit in self._units[number : number + 2]:
            self._await(unit)

    def _bring(self, unit: _Unit) -> None:
        """Begin to copy a unit to the device when what is queued now has ended, unless it is there."""
        if unit.there is not None:
            return
        # Memory of the stream that computes, which the student's phase takes next. The copy waits for who reads there still.
        unit.there = torch.empty_like(unit.host, device=self._device)
        if self._stream is None:
            unit.there.copy_(unit.host)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                unit.there.copy_(unit.host, non_blocking=True)
            unit.arrived = self._stream.record_event()
        unit.point_at(unit.there)

    def _await(self, unit: _Unit) -> None:
        if unit.arrived is not None:
            torch.cuda.current_stream(self._device).wait_event(unit.arrived)
            unit.group._wait_all_gather_streams_on_event(unit.arrived)
            unit.arrived = None


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream of a device, whose link all copies share."""
    return torch.cuda.Stream(device)


def _units(module: nn.Module, *, pinned: bool) -> Iterator[_Unit]:
    """Yield a wrapped model's units in the order of its forward, copied to one buffer and taken off the device."""
    found = []
    total = 0
    part: Any
    for part in module.modules():
        group = part._get_fsdp_state()._fsdp_param_group if isinstance(part, FSDPModule) else None
        if group is None:
            continue
        part.reshard()
        begin, places = total, list[slice]()
        for weight in group.fsdp_params:
            weight.reset_sharded_param()  # so that the shard and FSDP's padded form of it share their memory
            places.append(slice(total - begin, total - begin + weight._sharded_param_data.nbytes))
            total += -(-weight._sharded_param_data.nbytes // ALIGNED) * ALIGNED
        found.append((part, group, places, slice(begin, total)))
    buffer = torch.empty(0, dtype=torch.uint8).set_(new_buffer(total, is_pinned=pinned))
    for part, group, places, whole in found:
        unit = _Unit(module=part, group=group, places=places, host=buffer[whole])
        for weight, place in zip(group.fsdp_params, places, strict=True):
            unit.host[place].view(weight._sharded_param_data.dtype).copy_(weight._sharded_param_data)
        unit.point_at(unit.host)
        yield unit
