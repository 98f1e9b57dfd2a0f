"""verl's end of vLLM in a rank: without vLLM's engine, and with an end to the sending of weights that no server takes.

verl 0.9.1 imports `vllm.LLM` (`verl.third_party.vllm`), and all that it needs, for a name that nothing reads. The import takes
8 to 15 s at the end of a rank's loading of its models.

Weights go to vLLM's worker by a socket on which verl 0.9.1 waits for an answer without end. None comes from a worker that
cannot load them, such as one without memory.
"""

from typing import Any

from verl.workers.rollout import base

TAKE_S = 300.0
"""Seconds within which a part of the weights is taken: a bound on hanging, not on slowness."""


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
    vllm_rollout.BucketedWeightSender = bounded(vllm_rollout.BucketedWeightSender)
    return vllm_rollout.ServerAdapter


def bounded(sender: type[Any]) -> type[Any]:
    """Return verl's sender of weights, which waits up to `TAKE_S` for each answer, and does not wait for a reader at its end."""
    import zmq  # comes with vLLM

    class Sender(sender):
        socket: Any

        def _init_socket(self) -> None:
            super()._init_socket()
            for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
                self.socket.setsockopt(option, int(1000 * TAKE_S))
            self.socket.setsockopt(zmq.LINGER, 0)  # else its end waits for a reader

        async def async_send_weights(self, weights: Any) -> None:
            try:
                await super().async_send_weights(weights)
            except zmq.Again as error:
                raise RuntimeError(
                    f"vLLM has taken no part of the weights for {TAKE_S:.0f} s; its own error, if it had one, is above in the log"
                ) from error

    return Sender
