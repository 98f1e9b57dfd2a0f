"""The entropy of a model's next-token distributions from hidden states, without a second model."""

import torch
from torch import Tensor

from opd.losses.divergence import compute_dtype, tempered_log_probs
from opd.losses.padded_head import PaddedHead, padded_entries
from opd.losses.rows import row_dot


@torch.no_grad()
def next_token_entropy(
    hidden: Tensor, weight: Tensor, *, temperature: float, valid_vocab: int, chunk_size: int
) -> Tensor:
    """[T] entropy in nats of softmax(hidden @ weight[:valid_vocab].T / temperature), `chunk_size` rows of logits at a time.

    Computed in float32 (float64 if an input is); a 16-bit head on a CUDA device multiplies in 16 bits with fp32 sums.

    Args:
        hidden: [T, d] hidden states after the final norm.
        weight: [V, d] output head without bias, V >= valid_vocab.
    """
    dtype = compute_dtype(hidden, weight)
    multiplies_halves = hidden.device.type == "cuda" and weight.dtype in (torch.bfloat16, torch.float16)
    counted = weight.detach()[:valid_vocab]
    parts = [torch.zeros(0, dtype=dtype, device=hidden.device)]
    with torch.autocast(hidden.device.type, enabled=False):
        head = PaddedHead(counted if multiplies_halves else counted.to(dtype))
        for states in hidden.detach().split(chunk_size):
            parts.append(_row_entropies(head.logits(states.to(head.dtype), dtype), valid_vocab, temperature))
    return torch.cat(parts)


def rows_in(workspace_gib: float, valid_vocab: int) -> int:
    """Rows of float32 logits that fit into a workspace: the chunk of a CUDA device, which keeps nothing beside them."""
    return max(1, int(workspace_gib * 2**30) // (4 * padded_entries(valid_vocab)))


def _row_entropies(logits: Tensor, vocab: int, temperature: float) -> Tensor:
    if logits.device.type == "cuda" and logits.dtype == torch.float32:
        from opd.losses.cuda.entropy_kernel import row_entropies

        return row_entropies(logits, vocab, temperature)
    log_p = tempered_log_probs(logits, temperature)
    return -row_dot(log_p.exp(), log_p)
