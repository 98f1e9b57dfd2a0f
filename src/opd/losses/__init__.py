"""The loss of a language model's tokens from hidden states: its terms, and the registry of divergences."""

from opd.losses.divergences import DIVERGENCES, divergence, divergence_of, register_divergence
from opd.losses.head import head_loss, token_log_probs, unshared_mass
from opd.losses.terms import EventTargets, HiddenTargets, Loss, Output, Weights, reward_weights

__all__ = [
    "DIVERGENCES", "EventTargets", "HiddenTargets", "Loss", "Output", "Weights", "divergence", "divergence_of",
    "head_loss", "register_divergence", "reward_weights", "token_log_probs", "unshared_mass",
]  # fmt: skip
