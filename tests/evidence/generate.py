"""Answers of a model to prompts of one length, each row drawn by its own seed with the rollout server's sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tests.evidence.chains import Chain
from tests.evidence.models import tokenizer
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM

from opd.batch import RolloutRows
from opd.rollout.cpu.sampling import choose_tokens, uniforms


class Answers(NamedTuple):
    """B answers, packed as the trainer packs them, with what was drawn."""

    rows: RolloutRows
    surprise: Tensor
    """[num_response_tokens] -log p of each drawn token at temperature 1: its mean estimates the entropy a token."""


def texts_of(rows: RolloutRows) -> list[str]:
    """The response of each row."""
    ends, lens = rows.offsets[1:].tolist(), rows.response_lens.tolist()
    ids = rows.input_ids.tolist()
    answers = [ids[end - num : end] for end, num in zip(ends, lens, strict=True)]
    return tokenizer().batch_decode(answers, skip_special_tokens=True)


def right_answers(rows: RolloutRows, problems: Sequence[Chain]) -> NDArray[np.bool_]:
    """[B], of the problem of each row."""
    return np.array([problem.is_right(text) for problem, text in zip(problems, texts_of(rows), strict=True)])


@torch.inference_mode()
def generate(model: Qwen3ForCausalLM, prompts: Tensor, seeds: NDArray[np.uint64], *, max_tokens: int) -> Answers:
    """Sample at temperature 1 until the end of turn or `max_tokens`.

    Args:
        prompts: [B, P] int64. seeds: [B]; a row's draws are a function of its seed and the place alone.
    """
    device, (num_rows, width) = model.device, prompts.shape
    vocab, eos = len(tokenizer()), tokenizer().eos_token_id
    places = np.arange(width, width + max_tokens, dtype=np.uint64)
    drawn = uniforms(np.repeat(seeds, max_tokens), np.tile(places, num_rows))
    uniform = torch.from_numpy(drawn.reshape(num_rows, max_tokens)).to(device)
    ones, zeros = torch.ones(num_rows, device=device), torch.zeros(num_rows, dtype=torch.int64, device=device)
    tokens, logprobs = [], []
    done = torch.zeros(num_rows, dtype=torch.bool, device=device)
    cache, fed = DynamicCache(), prompts.to(device)
    for step in range(max_tokens):
        logits = model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1, :vocab]
        token, logprob = choose_tokens(
            logits.float(), temperature=ones, top_k=zeros, top_p=ones.double(), uniform=uniform[:, step]
        )
        tokens.append(token)
        logprobs.append(logprob)
        done |= token == eos
        if bool(done.all()):
            break
        fed = token[:, None]
    responses = torch.stack(tokens, dim=1)
    ended = (responses == eos).long().cumsum(dim=1)
    kept = (ended - (responses == eos).long()) == 0
    lens = kept.sum(dim=1)
    whole = torch.cat([prompts.to(device), responses], dim=1)
    rows = RolloutRows(
        input_ids=whole[torch.cat([torch.ones(num_rows, width, dtype=torch.bool, device=device), kept], dim=1)],
        prompt_lens=torch.full_like(lens, width),
        response_lens=lens,
        response_mask=torch.ones(int(lens.sum()), dtype=torch.bool, device=device),
    )
    return Answers(rows, -torch.stack(logprobs, dim=1)[kept])
