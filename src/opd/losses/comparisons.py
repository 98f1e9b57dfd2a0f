"""What others take in the place of the exact reverse KL, to be compared with it: one sampled token, or the teacher's top k."""

from __future__ import annotations

import torch
from torch import Tensor

from opd.losses.divergence import LOG_PROB_FLOOR, Comparison
from opd.losses.policy import pick, sampled_gradient


def compared_rows(
    kind: Comparison, log_s: Tensor, log_t: Tensor, *, picked: Tensor | None, top_k: int
) -> tuple[Tensor, Tensor]:
    """Value [C] of each row and its gradient [C, V] by the student's tempered logits z.

    With a = log p_S - log p_T and D = KL(p_S || p_T) = sum p_S a:

        sampled_reverse_kl  value a(y) of the sampled token y ("k1"); gradient (a(y) - D) d log p_S(y) / dz, which is the
                            policy gradient with the advantage D - a(y). Its mean over y ~ p_S is dD / dz: the baseline D,
                            the mean of a(y), changes no expectation.
        topk_reverse_kl     the KL of the two distributions over k + 1 events: the teacher's k most likely tokens, and all
                            others together, whose probabilities are exact sums. With b that distribution's log ratio,
                            of every token its own event's: p_S (b - sum p_S b).

    Args:
        log_s, log_t: [C, V] log-probabilities of student and teacher.
        picked: [C] int64, the sampled tokens; for `sampled_reverse_kl`.
        top_k: for `topk_reverse_kl`; with as many as there are entries, or one fewer, it is the reverse KL.
    """
    p_s = log_s.exp()
    if kind == "sampled_reverse_kl":
        if picked is None:
            raise ValueError("token_ids=None with kind='sampled_reverse_kl': give the sampled tokens")
        log_ratio = log_s - log_t
        value = pick(log_ratio, picked)
        return value, sampled_gradient(p_s, picked, value - (p_s * log_ratio).sum(-1))
    top = log_t.topk(min(top_k, log_t.shape[-1]), dim=-1).indices
    events_s, events_t = (_with_tail(side, top) for side in (log_s, log_t))
    log_ratio = events_s - events_t
    value = (events_s.exp() * log_ratio).sum(-1)
    of_token = log_ratio[:, -1:].expand_as(log_s).scatter(-1, top, log_ratio[:, :-1])
    return value, p_s * (of_token - (p_s * of_token).sum(-1, keepdim=True))


def _with_tail(log_probs: Tensor, top: Tensor) -> Tensor:
    """[C, k + 1] of the entries `top` [C, k], and of all others together."""
    others = log_probs.scatter(-1, top, LOG_PROB_FLOOR).logsumexp(-1, keepdim=True).clamp(min=LOG_PROB_FLOOR)
    return torch.cat([log_probs.gather(-1, top), others], dim=-1)
