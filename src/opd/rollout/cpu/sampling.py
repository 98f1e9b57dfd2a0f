"""Sampling parameters of a request, and the choice of each row's next token from its logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opd.rollout.cpu.config import EngineConfig

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The block function.

    Args:
        counter: [4, N] uint64 holding 32-bit words.
        key: [2, N] uint64 holding 32-bit words.

    Returns:
        [4, N] uint64 holding 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # 32 x 32 bits fit in 64
        c0, c1, c2, c3 = (
            (product1 >> _WORD) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _WORD) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3])


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position), 53 random bits each.

    Args:
        seeds: [N] uint64, the key.
        positions: [N] uint64, the counter.

    Returns:
        [N] float64.
    """
    zeros = np.zeros_like(positions)
    words = philox4x32(
        np.stack([positions & _LOW, positions >> _WORD, zeros, zeros]), np.stack([seeds & _LOW, seeds >> _WORD])
    )
    bits: NDArray[np.uint64] = (words[0] << _WORD | words[1]) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy, as in vLLM (`_SAMPLING_EPS`)."""

_KNOWN_KEYS = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "max_tokens",
    "max_new_tokens",
    "logprobs",
    "ignore_eos",
    "stop_token_ids",
    "repetition_penalty",
    "prompt_logprobs",
)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is to be answered, with every default filled in."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Smallest set of most probable tokens that holds this mass; 1 keeps all."""
    top_k: int = 0
    """Keep this many most probable tokens (and those that tie with the last); 0 keeps all."""
    seed: int = 0
    """64-bit key of the request's random numbers."""
    logprobs: bool = False
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    """Tokens that end the answer; they are part of it."""

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE


def parse_sampling_params(params: Mapping[str, Any], num_prompt_tokens: int, config: EngineConfig) -> SamplingParams:
    """Read what verl's agent loops send, by the rules of verl's vLLM server.

    `max_tokens` (or `max_new_tokens`) defaults to what is left of prompt_length + response_length, at most
    response_length, and is clamped to [1, max_model_len - prompt]; `top_k` of -1 or 0 keeps all tokens; the request's
    `stop_token_ids` add to the model's end tokens, which `ignore_eos` switches off.

    Raises:
        ValueError: an unknown or unsupported key, or a value outside its range.
    """
    unknown = sorted(set(params) - set(_KNOWN_KEYS))
    if unknown:
        raise ValueError(f"sampling_params has {', '.join(unknown)}; the CPU rollout knows {', '.join(_KNOWN_KEYS)}")
    if params.get("prompt_logprobs") is not None:
        raise ValueError("sampling_params.prompt_logprobs is not supported by the CPU rollout: score with the trainer")
    if params.get("repetition_penalty", 1.0) != 1.0:
        raise ValueError(
            f"sampling_params.repetition_penalty={params['repetition_penalty']} is not supported by the CPU rollout: "
            "use 1.0"
        )
    limit = params.get("max_tokens", params.get("max_new_tokens"))
    if limit is None:
        limit = min(config.response_length, config.prompt_length + config.response_length - num_prompt_tokens)
    temperature, top_p = float(params.get("temperature", 1.0)), float(params.get("top_p", 1.0))
    top_k = int(params.get("top_k") or 0)
    if not 0.0 <= temperature < float("inf"):
        raise ValueError(f"sampling_params.temperature={temperature} must be 0 (greedy) or positive")
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"sampling_params.top_p={top_p} must be in (0, 1]")
    if top_k < -1:
        raise ValueError(f"sampling_params.top_k={top_k} must be -1 or 0 (all tokens) or positive")
    stops = frozenset(params.get("stop_token_ids") or ())
    if not params.get("ignore_eos", config.ignore_eos):
        stops |= frozenset(config.eos_token_ids)
    logprobs = params.get("logprobs")
    return SamplingParams(
        max_tokens=max(1, min(int(limit), config.max_model_len - num_prompt_tokens)),
        temperature=temperature,
        top_p=top_p,
        top_k=max(0, top_k),
        seed=int(params.get("seed") or 0) & 0xFFFF_FFFF_FFFF_FFFF,
        logprobs=logprobs is not None and logprobs is not False,
        stop_token_ids=stops,
    )


def choose_tokens(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    uniform: torch.Tensor,
    forced: torch.Tensor | None = None,
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
    tokens = torch.where(greedy, scaled.argmax(dim=-1), sampled)
    if forced is not None:
        tokens = torch.where(forced >= 0, forced, tokens)
    tokens = tokens.clamp(max=logits.shape[1] - 1)  # rows of NaN, which the caller refuses
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _kept(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[N, V] bool: tokens that survive top-k, then top-p of what top-k left (the order of vLLM)."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    last = torch.where(top_k > 0, top_k, logits.shape[1]).clamp(max=logits.shape[1]) - 1
    ordered = ordered.masked_fill(ordered < ordered.gather(1, last[:, None]), float("-inf"))
    mass = torch.softmax(ordered.double(), dim=-1)
    above = mass.cumsum(dim=-1) - mass
    kept = (ordered > float("-inf")) & ((above < top_p[:, None]) | (top_p[:, None] >= 1.0))
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter(1, order, kept)
