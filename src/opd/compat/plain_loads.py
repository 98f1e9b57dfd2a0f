"""verl's checkpoints loaded without running any code that is in them: verl 0.9.1 unpickles each of its files whole.

A writer of the bucket or shared disk could otherwise run code in the trainer, by a pickle and a manifest with its hash.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.tensor  # allow-lists the parts of a sharded tensor
from numpy._core.multiarray import _reconstruct

from opd.compat import replaced

# In addition to tensors and plain values: numpy's generator, which verl saves with a rank's extra state.
ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    _reconstruct,
    np.ndarray,
    np.dtype,
    type(np.dtype(np.uint32)),
]
_MAX_REASON = 200


@contextlib.contextmanager
def plain_loads() -> Iterator[None]:
    """Have `torch.load` take tensors, plain values and ALLOWED alone, while verl loads a checkpoint.

    `torch.distributed.barrier` waits at the end instead, also after an error. verl's ranks wait for each other after the
    load, and a rank that fails before would leave the others there without end.
    """
    load = torch.load

    def plain(*args: Any, **kwargs: Any) -> Any:
        return load(*args, **{**kwargs, "weights_only": True})

    ours, waits = replaced(torch, load=plain), replaced(torch.distributed, barrier=lambda *_, **__: None)
    try:
        with torch.serialization.safe_globals(ALLOWED), ours, waits:
            yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


def find_unloadable(step_dir: Path, paths: Sequence[str]) -> list[str]:
    """Return why `.pt` files of a step hold other things than plain tensors and values; no tensor's bytes are read.

    Args:
        paths: relative to `step_dir`.
    """
    problems = []
    for path in (path for path in paths if path.endswith(".pt")):
        try:
            with torch.serialization.safe_globals(ALLOWED):
                torch.load(step_dir / path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # noqa: BLE001 - what a torn or hostile file makes torch's unpickler stumble over
            # torch's own sentence, without its advice to load the file with less care.
            named = re.search(r"WeightsUnpickler error.*", str(error)) or re.search(r"\S.*", str(error))
            problems.append(
                f"{path} cannot be loaded as plain data: {(named or [type(error).__name__])[0][:_MAX_REASON]}"
            )
    return problems
