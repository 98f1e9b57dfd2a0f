"""The teacher's final hidden states between its phase and the student's: on the device as far as they fit, else pinned."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SLAB_BYTES = 256 * 2**20  # pinned memory is slow to get and rounded up to powers of two: take it in large pieces, once
Fetch = Callable[[], Tensor]
"""Hidden states [N, d] on their way to the device, called for where they are needed, after other work was queued.

The current stream then waits for the copies; the host does not.
"""


class HiddenCache:
    """Hidden states [n_i, d] of rows at loss positions.

    On a CUDA device the first `device_gib` stay there. The rest goes to pinned host memory, which is kept for the next step, and
    comes back on a stream of its own.
    """

    device_bytes = host_bytes = 0
    """Bytes there and on the host, of what was put in since the last `clear`."""

    def __init__(self, *, device_gib: float, device: torch.device) -> None:
        self.device, self.budget_bytes = device, device_gib * 2**30
        self._rows: dict[int, Tensor] = {}
        self._slabs: list[Tensor] = []
        self._slab, self._offset = 0, 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def put(self, row: int, hidden: Tensor) -> None:
        """Keep the hidden states [n, d] of a row; the caller may drop them."""
        size = hidden.nbytes
        if self._stream is None or self.device_bytes + size <= self.budget_bytes:
            # A row of a micro-batch is a view of all of it, and would keep its spilled neighbours on the device.
            self._rows[row] = hidden if hidden.untyped_storage().nbytes() == size else hidden.clone()
            self.device_bytes += size
            return
        host = self._pinned(hidden)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            host.copy_(hidden, non_blocking=True)
        hidden.record_stream(self._stream)
        self._rows[row] = host
        self.host_bytes += size

    def keep(self, row: int, kept: Tensor) -> None:
        """Drop a row's hidden states [n, d] but those at `kept` [n] bool; the counts of bytes stay those put in."""
        if self._stream is not None:
            self._stream.synchronize()
        hidden = self._rows[row]
        some = hidden[kept.to(hidden.device)]
        is_spilled = hidden.device.type != self.device.type
        self._rows[row] = hidden[: len(some)].copy_(some) if is_spilled else some  # in its place, which is pinned

    def fetch(self, rows: Sequence[int]) -> Fetch:
        """Start bringing the hidden states of these rows together on the device, in this order."""
        parts = [self._rows[row] for row in rows]
        spilled = [part.device.type != self.device.type for part in parts]
        if self._stream is None or not any(spilled):
            joined = torch.cat(parts)
            return lambda: joined
        lengths = [len(part) for part in parts]
        hidden = torch.empty(sum(lengths), parts[0].shape[1], dtype=parts[0].dtype, device=self.device)
        pieces = list(zip(hidden.split(lengths), parts, spilled, strict=True))
        for piece, part, is_spilled in pieces:
            if not is_spilled:
                piece.copy_(part)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for piece, part, is_spilled in pieces:
                if is_spilled:
                    piece.copy_(part, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        hidden.record_stream(self._stream)

        def ready() -> Tensor:
            torch.cuda.current_stream(self.device).wait_event(copied)
            return hidden

        return ready

    def counts(self) -> dict[str, list[float]]:
        """Return MiB of a step's hidden states, and of their part on the host."""
        sizes = {"": self.device_bytes + self.host_bytes, "_host": self.host_bytes}
        return {f"perf/teacher_cache{part}_mb": [size / 2**20] for part, size in sizes.items()}

    def clear(self) -> None:
        """Forget all rows; pinned memory stays for the next step."""
        if self._stream is not None:
            self._stream.synchronize()  # a slab must not be written before the copies out of it are done
        self._rows.clear()
        self.device_bytes = self.host_bytes = self._slab = self._offset = 0

    def _pinned(self, like: Tensor) -> Tensor:
        """Return the next piece of pinned memory of this shape and dtype."""
        while self._slab < len(self._slabs) and self._offset + like.nbytes > self._slabs[self._slab].nbytes:
            self._slab, self._offset = self._slab + 1, 0
        if self._slab == len(self._slabs):
            self._slabs.append(torch.empty(max(SLAB_BYTES, like.nbytes), dtype=torch.uint8, pin_memory=True))
        piece = self._slabs[self._slab][self._offset : self._offset + like.nbytes]
        self._offset += -(-like.nbytes // 256) * 256
        return piece.view(like.dtype).view(like.shape)
