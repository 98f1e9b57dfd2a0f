"""verl's end of vLLM in a rank: without vLLM's engine, and with an end to the sending of weights that no server takes.

verl 0.9.1 imports `vllm.LLM` (`verl.third_party.vllm`), and all that it needs, for a name that nothing reads. The import takes
8 to 15 s at the end of a rank's loading of its models.

Weights go to vLLM's worker by a socket on which verl 0.9.1 waits for an answer without end. No answer comes where the engine has
died or the worker cannot load them. Here the error of the call by which vLLM takes them ends the sending. An engine that dies meanwhile
leaves the call unanswered until the run is found stalled.
"""

from __future__ import annotations

import concurrent.futures
from typing import Any

from verl.workers.rollout import base

_TAKE_WEIGHTS = "update_weights_from_ipc"
_POLL_MS = 500
_LAST_POLL_MS = 10_000


def register() -> None:
    """Give `rollout.name: vllm` verl's adapter in this process, imported as above."""
    base._ROLLOUT_REGISTRY[("vllm", "async")] = f"{__name__}.ServerAdapter"


def __getattr__(name: str) -> Any:
    if name != "ServerAdapter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import vllm

    vllm.LLM = None  # else vLLM looks the name up when it is first asked for, and imports its engine
    try:
        from verl.workers.rollout.vllm_rollout import vllm_rollout
    finally:
        del vllm.LLM
    globals()[name] = _ending_with_the_taking(vllm_rollout)
    return globals()[name]


def _ending_with_the_taking(rollout: Any) -> type[Any]:
    """Return verl's adapter, whose sender of weights ends with the call that takes them."""
    taking: list[concurrent.futures.Future[Any]] = []

    class Sender(rollout.BucketedWeightSender):
        socket: Any

        def _init_socket(self) -> None:
            super()._init_socket()
            if taking:  # the first rank of a server of several GPUs makes the call
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
    """A sender's socket (zmq's) that waits for an answer as long as the call that takes the weights runs."""

    def __init__(self, socket: Any, taking: concurrent.futures.Future[Any]):
        self._socket = socket
        self._taking = taking

    def send_pyobj(self, part: Any) -> None:
        self._await("POLLOUT")
        self._socket.send_pyobj(part)

    def recv(self) -> bytes:
        self._await("POLLIN")
        answer: bytes = self._socket.recv()
        return answer

    def close(self) -> None:
        self._socket.close(linger=0)  # else it waits for a reader of its last words

    def _await(self, name: str) -> None:
        """Wait for an event; raise the error that ended the taking, or RuntimeError if it ended with a part unanswered."""
        import zmq  # comes with vLLM

        event = getattr(zmq, name)
        while not self._socket.poll(_POLL_MS, event):
            if self._taking.done():
                self._taking.result()
                if not self._socket.poll(_LAST_POLL_MS, event):  # it may have come in between
                    raise RuntimeError("vLLM has ended taking the weights, and a part of them is not answered")
