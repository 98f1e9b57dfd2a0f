"""verl's checkpoints loaded without running any code that is in them: verl 0.9.1 unpickles each of its files whole.

Who can write a bucket or a shared disk could otherwise put a pickle there, list its hash in a manifest of his own, and run
code in the trainer. Each replacement has a test in tests/compat/test_plain_loads.py that fails when verl needs it no more.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.tensor  # allow-lists the parts of a sharded tensor
from numpy._core.multiarray import _reconstruct

# Beside tensors and plain values: numpy's generator, which verl saves with a rank's extra state.
# numpy 1 wrote the same function under its old module's name.
ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    _reconstruct,
    (_reconstruct, "numpy.core.multiarray._reconstruct"),
    np.ndarray,
    np.dtype,
    type(np.dtype(np.uint32)),
]
_MAX_REASON = 200


@contextlib.contextmanager
def plain_loads() -> Iterator[None]:
    """While verl loads a checkpoint: `torch.load` takes tensors, plain values and ALLOWED, whatever its caller asks for.

    `torch.distributed.barrier` waits at the end instead, also after an error: verl's ranks wait for each other behind the
    load, and one that fails before would leave the others there for good.
    """
    load, barrier = torch.load, torch.distributed.barrier

    @functools.wraps(load)
    def load_plain(*args: Any, **kwargs: Any) -> Any:
        with torch.serialization.safe_globals(ALLOWED):
            return load(*args, **{**kwargs, "weights_only": True})

    torch.load, torch.distributed.barrier = load_plain, lambda *args, **kwargs: None
    try:
        yield
    finally:
        torch.load, torch.distributed.barrier = load, barrier
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


def find_unloadable(step_dir: Path, paths: Sequence[str]) -> list[str]:
    """Which files of a step hold no plain tensors and values, and why; reads no tensor's bytes.

    Args:
        paths: relative to `step_dir`; other files than `.pt` are left alone.
    """
    problems = []
    for path in paths:
        if not path.endswith(".pt"):
            continue
        try:
            with torch.serialization.safe_globals(ALLOWED):
                torch.load(step_dir / path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # noqa: BLE001 - what a torn or hostile file makes torch's unpickler stumble over
            problems.append(f"{path} cannot be loaded as plain data: {_reason(error)}")
    return problems


def _reason(error: Exception) -> str:
    """torch's own sentence, without its advice to load the file with less care."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("WeightsUnpickler error")]
    return (named or lines or [type(error).__name__])[0][:_MAX_REASON]
