"""Supervised training of the toy models on the answers to training problems, through the chat template."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opd.data.toy.evaluate import prompt_token_ids
from opd.data.toy.task import Problem, assert_disjoint, split_problems


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """How one toy model is trained."""

    num_steps: int
    """Fixed, so that no held-out problem has a say in when to stop; also the length of the cosine schedule."""
    seed: int
    dropped_carry_fraction: float = 0.0
    """Share of the training problems that are taught with `Problem.answer_without_carries`."""
    learning_rate: float = 1e-3
    num_warmup_steps: int = 20
    batch_size: int = 256
    adam_betas: tuple[float, float] = (0.9, 0.98)
    grad_clip: float = 1.0


def taught_answers(problems: Sequence[Problem], config: SftConfig) -> list[str]:
    """The answer that each problem is taught with: a coin of the config's seed decides who drops the carries."""
    coin = random.Random(config.seed)
    dropped = [coin.random() < config.dropped_carry_fraction for _ in problems]
    return [p.answer_without_carries if drop else p.answer for p, drop in zip(problems, dropped, strict=True)]


def encode_examples(
    tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], answers: Sequence[str], *, enable_thinking: bool
) -> tuple[torch.Tensor, int]:
    """Token ids [P, prompt_len + 4] int64 (prompt, three digits, eos) and prompt_len."""
    prompts = prompt_token_ids(tokenizer, problems, enable_thinking=enable_thinking)
    responses = tokenizer([answer + tokenizer.eos_token for answer in answers], return_tensors="pt")
    return torch.cat([prompts, responses["input_ids"]], dim=1), prompts.shape[1]


def train_sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    config: SftConfig,
    on_step: Callable[[int, float], None],
) -> None:
    """Train in place by cross-entropy on the answer tokens, eos included; `on_step(step, loss)` after each step.

    Raises ValueError before the first step if a held-out problem is among the problems.
    """
    assert_disjoint(problems, split_problems().heldout)
    answers = taught_answers(problems, config)
    # Steps take turns with the template's two generation prompts, so that the models answer after either.
    styles = [encode_examples(tokenizer, problems, answers, enable_thinking=thinking) for thinking in (True, False)]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=config.adam_betas, weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_factor(step, config))
    generator = torch.Generator().manual_seed(config.seed)
    model.train()
    for step in range(1, config.num_steps + 1):
        examples, prompt_len = styles[step % len(styles)]
        batch = examples[torch.randperm(len(examples), generator=generator)[: config.batch_size]]
        logits = model(input_ids=batch).logits[:, prompt_len - 1 : -1]  # the logits that predict the answer's tokens
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, prompt_len:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        schedule.step()
        on_step(step, loss.item())
    model.eval()


def _lr_factor(step: int, config: SftConfig) -> float:
    """Linear warm-up, then half a cosine down to zero at `num_steps` (`step` counts from 0)."""
    warmup = min(1.0, (step + 1) / config.num_warmup_steps)
    return warmup * 0.5 * (1.0 + math.cos(math.pi * step / config.num_steps))
