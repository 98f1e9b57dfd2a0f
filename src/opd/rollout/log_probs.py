"""Which steps' rollouts come with the log-probability of each of their tokens."""

from __future__ import annotations

from omegaconf import DictConfig


def asks_log_probs(config: DictConfig, *, every: int, step: int) -> bool:
    """Whether the training rollouts of a step are asked for them.

    One request that asks makes vLLM compute them for its whole batch, and a decoding step takes up to three times as long
    (tests/benchmarks/gpu/NOTES.md). The check that rollout and actor are the same model can do with some steps; a correction
    of verl's, which GRPO may be given, reads them in all.

    Args:
        config: verl's. every: `rollout.logprobs_every`. step: global step; 1 is the first.
    """
    correction = config.algorithm.get("rollout_correction") or {}
    in_the_loss = any(correction.get(key) for key in ("bypass_mode", "rollout_is", "rollout_rs"))
    return bool(config.actor_rollout_ref.rollout.calculate_log_probs) and (in_the_loss or (step - 1) % every == 0)
