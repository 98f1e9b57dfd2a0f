"""Where the next call of the fused divergence starts: stored as the last one had to be."""

from opd.losses.cuda.plan import LogitsPrecision

RETRY_AFTER = 64
"""Calls in fp32 before fp16 is tried again. A try that fails costs half a call, fp32 a tenth of each; a student that has come
close to its teacher stays there."""


class StorageMemory:
    """Remembers over calls that logits had to be stored in fp32, so that not every call tries fp16 first and starts over."""

    def __init__(self) -> None:
        self._num_wide = 0

    @property
    def precision(self) -> LogitsPrecision:
        """What to begin the next call with."""
        return "fp32" if self._num_wide % RETRY_AFTER else "fp16"

    def learn(self, used: str) -> None:
        """`used`: `DivergenceOutput.precision` of a call; of a plain one, which stores no logits, nothing is learnt."""
        if used not in ("fp16", "fp32"):
            return
        self._num_wide = self._num_wide + 1 if used == "fp32" else 0
