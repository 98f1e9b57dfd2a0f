"""Sampling parameters of a request, and the choice of each row's next token from its logits."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy, as in vLLM (`_SAMPLING_EPS`)."""
_KEYS = {"temperature", "top_p", "top_k", "seed", "max_tokens", "logprobs", "ignore_eos", "stop_token_ids"}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Settings of one request."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Smallest set of most probable tokens that holds this mass; 1 keeps all."""
    top_k: int = 0
    """Keep this many most probable tokens (and those that tie with the last); 0 keeps all."""
    seed: int = 0
    logprobs: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the answer; they are part of it."""

    @classmethod
    def of(cls, params: Mapping[str, Any], *, max_tokens: int, room: int, eos_token_ids: frozenset[int]) -> Self:
        """Read what an agent loop sends to verl's vLLM server.

        Args:
            max_tokens: where the request names none. room: tokens that fit after the prompt.
            eos_token_ids: of the model; `ignore_eos` switches them off, and the request's `stop_token_ids` join them.

        Raises:
            ValueError: a key that this server cannot honour.
        """
        unknown = sorted(f"{key}={value}" for key, value in params.items() if key not in _KEYS)
        if unknown:
            raise ValueError(
                f"sampling_params has {', '.join(unknown)}; the CPU rollout knows {', '.join(sorted(_KEYS))}"
            )
        return cls(
            max_tokens=max(1, min(int(params.get("max_tokens", max_tokens)), room)),
            temperature=float(params.get("temperature", 1.0)),
            top_p=float(params.get("top_p", 1.0)),
            top_k=max(0, int(params.get("top_k") or 0)),
            seed=int(params.get("seed") or 0),
            logprobs=params.get("logprobs") not in (None, False),
            stop_token_ids=frozenset(params.get("stop_token_ids") or ())
            | (frozenset() if params.get("ignore_eos") else eos_token_ids),
        )


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) of 53 random bits, a function of seed and position alone."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def choose_tokens(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    uniform: torch.Tensor,
    forced: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick each row's token by inverting its cumulative distribution at `uniform`; greedy rows take the maximum.

    Every row is computed by itself: which filters other rows use changes nothing in it.

    Args:
        logits: [N, V] fp32, the tokenizer's entries only.
        temperature: [N] fp32; below `GREEDY_TEMPERATURE` the row is greedy and its log-probabilities are at 1.
        top_k: [N] int64; 0 keeps all.
        top_p: [N] fp64; 1 keeps all.
        uniform: [N] fp64 in [0, 1).
        forced: [N] int64, the row's token if it is prescribed, else -1.

    Returns:
        tokens [N] int64 and their log-probabilities [N] fp32.
    """
    greedy = temperature < GREEDY_TEMPERATURE
    scaled = logits / torch.where(greedy, 1.0, temperature)[:, None]
    if bool(((top_k > 0) | (top_p < 1.0)).any()):
        scaled = scaled.masked_fill(~_kept(scaled, top_k, top_p), float("-inf"))
    logprobs = torch.log_softmax(scaled, dim=-1)
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    # right=True skips tokens without mass; the minimum is for a product that rounds up to the total itself.
    sampled = torch.searchsorted(cumulative, uniform[:, None] * total, right=True)
    sampled = torch.minimum(sampled, torch.searchsorted(cumulative, total))[:, 0]
    tokens = torch.where(forced >= 0, forced, torch.where(greedy, scaled.argmax(dim=-1), sampled))
    tokens = tokens.clamp(max=logits.shape[1] - 1)  # rows of NaN, which the caller refuses
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _kept(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return [N, V] bool: tokens that survive top-k, then top-p of what top-k left (the order of vLLM)."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    last = torch.where(top_k > 0, top_k, logits.shape[1]).clamp(max=logits.shape[1]) - 1
    ordered = ordered.masked_fill(ordered < ordered.gather(1, last[:, None]), float("-inf"))
    mass = torch.softmax(ordered.double(), dim=-1)
    above = mass.cumsum(dim=-1) - mass
    kept = (ordered > float("-inf")) & ((above < top_p[:, None]) | (top_p[:, None] >= 1.0))
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter(1, order, kept)
