"""Divergences between student and teachers, from logits or straight from hidden states, and the weights of their sums."""

from opd.losses.chunked import chunked_divergence
from opd.losses.divergence import COMPARISONS, DIVERGENCE_KINDS, DivergenceKind, divergence
from opd.losses.divergences import DIVERGENCES, divergence_of, register_divergence
from opd.losses.head import head_loss, token_log_probs
from opd.losses.output import DivergenceOutput
from opd.losses.policy import PolicyTerm
from opd.losses.terms import EventTargets, HiddenTargets, Loss, Output, Weights
from opd.losses.weighting import reward_weights, token_weights

__all__ = [
    "COMPARISONS",
    "DIVERGENCES",
    "DIVERGENCE_KINDS",
    "DivergenceKind",
    "DivergenceOutput",
    "EventTargets",
    "HiddenTargets",
    "Loss",
    "Output",
    "PolicyTerm",
    "Weights",
    "chunked_divergence",
    "divergence",
    "divergence_of",
    "head_loss",
    "register_divergence",
    "reward_weights",
    "token_log_probs",
    "token_weights",
]
