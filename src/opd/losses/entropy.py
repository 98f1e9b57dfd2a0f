"""The entropy of a model's next-token distributions from hidden states, without a second model."""

import torch
from torch import Tensor

from opd.losses.divergence import compute_dtype, tempered_log_probs
from opd.losses.fused import fused_obstacle
from opd.losses.padded_head import PaddedHead, padded_entries
from opd.losses.rows import row_dot

ROWS_FUSED = 16
# Tensors of a chunk's size that the plain form keeps at once.
_CHUNK_TENSORS = 8


def chunk_rows(workspace_gib: float, entries: int) -> int:
    """Return the number of tokens whose rows of logits fit into a workspace."""
    return max(1, int(workspace_gib * 2**30) // (_CHUNK_TENSORS * 4 * entries))


@torch.no_grad()
def next_token_entropy(
    hidden: Tensor, weight: Tensor, *, temperature: float, valid_vocab: int, chunk_size: int
) -> Tensor:
    """[T] entropy in nats of softmax(hidden @ weight[:valid_vocab].T / temperature), `chunk_size` rows of logits at a time.

    Computed in float32 (float64 if an input is); a 16-bit head on a CUDA device multiplies in 16 bits with fp32 sums, and
    where the fused divergence can run, logits are stored as it stores them and read once.

    Args:
        hidden: [T, d] hidden states after the final norm.
        weight: [V, d] output head without bias, V >= valid_vocab.
        chunk_size: of the plain form, which keeps up to eight tensors of four bytes a logit; the fused one keeps two bytes
            and takes `ROWS_FUSED` times as many rows.
    """
    counted = weight.detach()[:valid_vocab]
    if fused_obstacle(weight, weight) is None:
        from opd.losses.hopper.entropy_kernel import head_entropies

        with torch.cuda.device(hidden.device), torch.autocast("cuda", enabled=False):
            rows = ROWS_FUSED * chunk_size
            return torch.cat(head_entropies(hidden.detach(), counted, temperature=temperature, chunk_size=rows))
    dtype = compute_dtype(hidden, weight)
    multiplies_halves = hidden.device.type == "cuda" and weight.dtype in (torch.bfloat16, torch.float16)
    parts = [torch.zeros(0, dtype=dtype, device=hidden.device)]
    with torch.autocast(hidden.device.type, enabled=False):
        head = PaddedHead(counted if multiplies_halves else counted.to(dtype))
        for states in hidden.detach().split(chunk_size):
            log_p = tempered_log_probs(
                head.logits(
                    states.to(head.dtype), hidden.new_empty(len(states), padded_entries(valid_vocab), dtype=dtype)
                ),
                temperature,
            )
            parts.append(-row_dot(log_p.exp(), log_p))
    return torch.cat(parts)
