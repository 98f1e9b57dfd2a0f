"""The probability that a model puts on tokens which the other model lacks."""

import torch
from torch import Tensor

from opd.losses.divergences import compute_dtype

_CHUNK_ROWS = 1024  # rows whose token's entry of the head is gathered at once


@torch.no_grad()
def unshared_mass(
    hidden: Tensor,
    weight: Tensor,
    *,
    shared: int,
    entries: int,
    token_ids: Tensor,
    log_prob: Tensor,
    temperature: float,
) -> Tensor:
    """[T] probability of the tokens `shared` ... `entries - 1` in softmax(hidden @ weight[:entries].T / temperature).

    No second pass over the vocabulary: with z the logits divided by the temperature, the log-probability of one shared
    token among the shared ones is z_token - logsumexp(z_shared), so logsumexp(z_shared) = z_token - log_prob. With
    the few unshared logits that makes

        mass = sigmoid(logsumexp(z_unshared) - logsumexp(z_shared)).

    Costs one product with `entries - shared` rows of the head and one dot product a token, in float32 (float64 if an
    input is).

    Args:
        hidden: [T, d] hidden states after the final norm.
        weight: [V, d] output head without bias, V >= entries.
        shared: number of leading entries that both models have, entries: of this model's tokens.
        token_ids: [T] int64, any shared token of each position.
        log_prob: [T] its log-probability among the shared entries, at this temperature.
        temperature: divides the logits.
    """
    dtype = compute_dtype(hidden, weight)
    mass = torch.zeros(len(hidden), dtype=dtype, device=hidden.device)
    with torch.autocast(hidden.device.type, enabled=False):
        own = weight[shared:entries].to(dtype)
        for start in range(0, len(hidden), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            states, tokens = hidden[rows].to(dtype), weight.index_select(0, token_ids[rows]).to(dtype)
            of_shared = (states * tokens).sum(dim=-1) / temperature - log_prob[rows]
            of_unshared = torch.logsumexp(states @ own.T / temperature, dim=-1)
            mass[rows] = torch.sigmoid(of_unshared - of_shared)
    return mass
