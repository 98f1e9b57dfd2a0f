"""The name by which experiment files call the travel reward: `opd.agent.reward:compute_score`."""

from opd.envs.travel.reward import compute_score

__all__ = ["compute_score"]
