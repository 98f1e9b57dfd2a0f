"""Which steps' rollouts come with the log-probability of each of their tokens."""

from __future__ import annotations

from omegaconf import DictConfig


def asks_log_probs(config: DictConfig, *, every: int, step: int) -> bool:
    """Return True if the training rollouts of a step come with them.

    One request that asks makes vLLM compute them for its whole batch, and a decoding step takes up to three times as long. The
    check that rollout and actor are the same model can do with some steps.

    Args:
        config: verl's. every: `rollout.logprobs_every`. step: global step; 1 is the first.
    """
    return bool(config.actor_rollout_ref.rollout.calculate_log_probs) and (step - 1) % every == 0
