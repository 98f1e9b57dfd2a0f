"""Supervised training of the toy models on the answers to training problems, through the chat template."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opd.data.toy.evaluate import greedy_accuracy, prompt_token_ids
from opd.data.toy.task import Problem, assert_disjoint, split_problems


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """How one toy model is trained."""

    num_steps: int
    """Length of the cosine schedule, and the last step unless `stop_at_accuracy` ends it before."""
    stop_at_accuracy: float | None = None
    """End as soon as greedy accuracy on `validation` (a slice of the training split, never held-out) reaches this."""
    check_every: int = 5
    """Steps between two such checks."""
    seed: int
    learning_rate: float = 1e-3
    num_warmup_steps: int = 20
    batch_size: int = 256
    adam_betas: tuple[float, float] = (0.9, 0.98)
    grad_clip: float = 1.0


def encode_examples(
    tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], *, enable_thinking: bool
) -> tuple[torch.Tensor, int]:
    """Token ids [P, prompt_len + 4] int64 (prompt, three digits, eos) and prompt_len."""
    prompts = prompt_token_ids(tokenizer, problems, enable_thinking=enable_thinking)
    answers = tokenizer([problem.answer + tokenizer.eos_token for problem in problems], return_tensors="pt")
    return torch.cat([prompts, answers["input_ids"]], dim=1), prompts.shape[1]


def train_sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    config: SftConfig,
    *,
    validation: Sequence[Problem],
    on_step: Callable[[int, float], None],
) -> int:
    """Train in place by cross-entropy on the answer tokens, eos included, and return the number of steps taken.

    `on_step(step, loss)` is called after each step. Raises ValueError before the first step if a held-out problem is
    among the problems or in the validation slice, or if the two overlap.
    """
    assert_disjoint([*problems, *validation], split_problems().heldout)
    assert_disjoint(problems, validation)
    # Steps take turns with the template's two generation prompts, so that the models answer after either.
    styles = [encode_examples(tokenizer, problems, enable_thinking=thinking) for thinking in (True, False)]
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
        if config.stop_at_accuracy is not None and step % config.check_every == 0:
            model.eval()
            if greedy_accuracy(model, tokenizer, validation) >= config.stop_at_accuracy:
                break
            model.train()
    model.eval()
    return step


def _lr_factor(step: int, config: SftConfig) -> float:
    """Linear warm-up, then half a cosine down to zero at `num_steps` (`step` counts from 0)."""
    warmup = min(1.0, (step + 1) / config.num_warmup_steps)
    return warmup * 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / config.num_steps)))
