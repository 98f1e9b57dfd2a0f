"""Greedy accuracy of a model on toy problems, through the chat template, as a user of the folder would measure it."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opd.data.toy.task import Problem
from opd.rewards.scorers import exact_match

MAX_NEW_TOKENS = 8
"""Twice the answer's three digits and end of turn: a response that runs on is wrong, not cut to a right one."""


def prompt_token_ids(
    tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], *, enable_thinking: bool = True
) -> torch.Tensor:
    """Return token ids [P, prompt_len] int64 of the problems' generation prompts (all of one length: operands are padded)."""
    conversations = [problem.messages for problem in problems]
    encoded = tokenizer.apply_chat_template(
        conversations, add_generation_prompt=True, return_dict=False, enable_thinking=enable_thinking
    )
    return torch.tensor(encoded)


@torch.no_grad()
def greedy_responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    *,
    enable_thinking: bool = True,
) -> list[str]:
    """Return the model's greedy answer to each problem, without special tokens."""
    prompts = prompt_token_ids(tokenizer, problems, enable_thinking=enable_thinking).to(model.device)
    output = model.generate(  # type: ignore[operator]  # a mixin's method, which PreTrainedModel's type lacks
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=MAX_NEW_TOKENS, do_sample=False
    )
    return tokenizer.batch_decode(output[:, prompts.shape[1] :], skip_special_tokens=True)


def greedy_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    *,
    enable_thinking: bool = True,
) -> float:
    """Return the fraction of the problems that the model answers greedily, scored by the reward function of the task's runs."""
    responses = greedy_responses(model, tokenizer, problems, enable_thinking=enable_thinking)
    return sum(exact_match(r, p.answer).acc for r, p in zip(responses, problems, strict=True)) / len(problems)
