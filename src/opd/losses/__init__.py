"""Divergences between student and teachers, from logits or straight from hidden states, and the weights of their sums."""

from opd.losses.chunked import chunked_divergence
from opd.losses.divergence import COMPARISONS, DIVERGENCE_KINDS, DivergenceKind, divergence
from opd.losses.output import DivergenceOutput
from opd.losses.policy import PolicyTerm
from opd.losses.weighting import reward_weights, token_weights

__all__ = [
    "COMPARISONS",
    "DIVERGENCE_KINDS",
    "DivergenceKind",
    "DivergenceOutput",
    "PolicyTerm",
    "chunked_divergence",
    "divergence",
    "reward_weights",
    "token_weights",
]
