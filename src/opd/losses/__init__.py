"""Divergences between student and teacher, from logits or straight from hidden states, and the weights of their sums."""

from opd.losses.chunked import chunked_divergence
from opd.losses.divergence import DIVERGENCE_KINDS, DivergenceKind, divergence
from opd.losses.output import DivergenceOutput
from opd.losses.weighting import reward_weights, token_weights

__all__ = [
    "DIVERGENCE_KINDS",
    "DivergenceKind",
    "DivergenceOutput",
    "chunked_divergence",
    "divergence",
    "reward_weights",
    "token_weights",
]
