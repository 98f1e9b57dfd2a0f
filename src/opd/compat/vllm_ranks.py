"""verl's end of vLLM in a rank, without vLLM's engine: verl 0.9.1 imports `vllm.LLM`, and all that it needs, for one constant.

The import, of `verl.third_party.vllm`, stands at the end of a rank's loading of its models and takes it about as long as a server (8 to
15 s); nothing reads the name. What else verl imports of vLLM in its processes stays, and is short: `vllm` itself, which
sets the environment of compilers and mends torch's, and `vllm.distributed`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from verl.workers.rollout import base


def register() -> None:
    """In this process `rollout.name: vllm` has verl's adapter, imported as above."""
    base._ROLLOUT_REGISTRY[("vllm", "async")] = f"{__name__}.ServerAdapter"


def __getattr__(name: str) -> Any:
    if name != "ServerAdapter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _no_engine():
        from verl.workers.rollout.vllm_rollout import ServerAdapter
    return ServerAdapter


@contextlib.contextmanager
def _no_engine() -> Iterator[None]:
    """Within it `from vllm import LLM` gives None and imports nothing; vLLM looks the name up when it is first asked for."""
    import vllm

    vllm.LLM = None
    try:
        yield
    finally:
        del vllm.LLM
