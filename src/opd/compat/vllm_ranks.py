"""verl's end of vLLM in a rank: without vLLM's engine, and with an end to the sending of weights that nobody takes.

verl 0.9.1 imports `vllm.LLM`, and all that it needs, for one constant. The import, of `verl.third_party.vllm`, stands at the end of a rank's
loading of its models and takes it about as long as a server (8 to 15 s); nothing reads the name. What else verl imports of vLLM in its processes stays, and is short: `vllm` itself, which
sets the environment of compilers and mends torch's, and `vllm.distributed`.

Weights go to vLLM's worker by a socket on which verl 0.9.1 waits for an answer for ever, also where the engine had died before, or the worker
could not load what it was given. Here the call that told vLLM to take them is looked at meanwhile, and its error ends the sending. (An engine
that dies meanwhile leaves the call unanswered until the run is found stalled. So does a worker of a server of several GPUs, but the
first, that cannot load its part: vLLM hears its workers in their order.)
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Any

from verl.workers.rollout import base

_TAKE_WEIGHTS = "update_weights_from_ipc"
_POLL_MS = 500
_LAST_POLL_MS = 10_000


def register() -> None:
    """In this process `rollout.name: vllm` has verl's adapter, imported as above."""
    base._ROLLOUT_REGISTRY[("vllm", "async")] = f"{__name__}.ServerAdapter"


def __getattr__(name: str) -> Any:
    if name != "ServerAdapter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _no_engine():
        from verl.workers.rollout.vllm_rollout import vllm_rollout
    globals()[name] = _ending_with_the_taking(vllm_rollout)
    return globals()[name]


@contextlib.contextmanager
def _no_engine() -> Iterator[None]:
    """Within it `from vllm import LLM` gives None and imports nothing; vLLM looks the name up when it is first asked for."""
    import vllm

    vllm.LLM = None
    try:
        yield
    finally:
        del vllm.LLM


def _ending_with_the_taking(rollout: Any) -> type[Any]:
    """verl's adapter, whose sender of weights ends with the call that takes them."""
    taking: list[concurrent.futures.Future[Any]] = []

    class Sender(rollout.BucketedWeightSender):
        socket: Any

        def _init_socket(self) -> None:
            super()._init_socket()
            if taking:  # a server of several GPUs is told by the first of its ranks
                self.socket = Answered(self.socket, taking.pop())

    class ServerAdapter(rollout.ServerAdapter):
        async def _execute_method(self, method: str, *args: Any, **kwargs: Any) -> Any:
            result = await super()._execute_method(method, *args, **kwargs)
            if method == _TAKE_WEIGHTS and result is not None:
                taking[:] = [result.future()]
            return result

    rollout.BucketedWeightSender = Sender
    return ServerAdapter


class Answered:
    """A sender's socket that waits for who takes the weights for as long as someone does.

    Args:
        socket: zmq's.
        taking: the call that takes the weights.
    """

    def __init__(self, socket: Any, taking: concurrent.futures.Future[Any]):
        self._socket = socket
        self._taking = taking

    def send_pyobj(self, part: Any) -> None:
        """Tell of a part of the weights; raises as `recv`."""
        self._await("POLLOUT")
        self._socket.send_pyobj(part)

    def recv(self) -> bytes:
        """An answer.

        Raises:
            Exception: whatever ended the taking.
            RuntimeError: it ended and left a part unanswered.
        """
        self._await("POLLIN")
        answer: bytes = self._socket.recv()
        return answer

    def close(self) -> None:
        """Close it; nobody waits for words that nobody reads."""
        self._socket.close(linger=0)

    def _await(self, name: str) -> None:
        import zmq  # comes with vLLM

        event = getattr(zmq, name)
        while not self._socket.poll(_POLL_MS, event):
            if self._taking.done():
                self._taking.result()
                if not self._socket.poll(_LAST_POLL_MS, event):  # it may have come in between
                    raise RuntimeError("vLLM has ended taking the weights, and a part of them is not answered")
