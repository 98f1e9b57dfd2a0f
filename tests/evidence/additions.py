"""The toy's additions as the studies use them: prompts, lessons, sampled answers and the divergence of both models."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from tests.evidence.generate import generate
from tests.evidence.study import fit, warmed_up
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from opd.batch import LossPositions, RolloutRows, build_opd_batch, loss_positions, padded_row_starts
from opd.data.toy.task import Problem, make_row, split_problems
from opd.data.toy.tokenizer import build_tokenizer
from opd.importance.counter import step_seed
from opd.losses import HiddenTargets, Loss, Weights, head_loss, token_weights
from opd.trainer.teacher_prompts import own_messages

TEMPLATE = "{prompt}({reward_model.ground_truth})"
"""`48+75=` becomes `48+75=(123)`: `teacher.prompt` of an experiment on these files."""
NUM_UPDATES, BATCH_SIZE, NUM_WARMUP = 40, 64, 5
MAX_TOKENS = 4


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], hints: Sequence[str] | None = None
) -> Tensor:
    """[P, prompt_len] int64 through the chat template, as the trainer writes the prompts of student and teacher.

    Args:
        hints: what stands in the place of each problem's answer in the template; None: the student's prompt.
    """
    messages = [problem.messages for problem in problems]
    if hints is not None:
        rows = [make_row(problem, "train") for problem in problems]
        for row, hint in zip(rows, hints, strict=True):
            row["reward_model"]["ground_truth"] = hint
        messages = [own_messages(TEMPLATE, row, prompt_key="prompt") for row in rows]
    return torch.tensor(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def lesson(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: Tensor, answers: Sequence[str]
) -> Tensor:
    said = tokenizer([answer + tokenizer.eos_token for answer in answers], return_tensors="pt")["input_ids"]
    logits = model(input_ids=torch.cat([prompts, said], dim=1)).logits[:, prompts.shape[1] - 1 : -1]
    return functional.cross_entropy(logits.flatten(0, 1), said.flatten())


def share_right(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, hint: Callable[[int], str] | None, *, seed: int
) -> float:
    """Of one sampled answer to each held-out problem; `hint` gives the number that the model reads with problem k."""
    problems = split_problems().heldout
    hints = None if hint is None else [hint(number) for number in range(len(problems))]
    seeds = np.random.default_rng(step_seed(seed, -1)).integers(0, 2**63, len(problems), dtype=np.uint64)
    rows = generate(model, prompt_ids(tokenizer, problems, hints), seeds, max_tokens=MAX_TOKENS).rows
    return sum(are_right(rows, problems)) / len(problems)


def are_right(rows: RolloutRows, problems: Sequence[Problem]) -> list[bool]:
    """Return which answers are right."""
    spans = zip(rows.input_ids.split(rows.lens.tolist()), rows.response_lens.tolist(), strict=True)
    texts = build_tokenizer().batch_decode([row[-num:] for row, num in spans], skip_special_tokens=True)
    return [text == problem.answer for text, problem in zip(texts, problems, strict=True)]


def distil(
    student: Qwen3ForCausalLM,
    loss_of: Callable[[RolloutRows, Sequence[Problem], int], Tensor],
    *,
    seed: int,
    rate: float,
    ask: Callable[[random.Random], Sequence[Problem]] = lambda draw: draw.sample(split_problems().train, BATCH_SIZE),
    num_updates: int | None = None,
    betas: tuple[float, float] = (0.9, 0.98),
    factor: Callable[[int], float] = warmed_up(NUM_WARMUP),
) -> None:
    """Train the student on its own answers.

    Args:
        loss_of: the loss of the answers to these problems, in a step from 0.
        ask: the problems of an update.
    """
    draw = random.Random(seed)

    def loss_at(step: int) -> Tensor:
        asked = ask(draw)
        seeds = np.random.default_rng(step_seed(seed, step)).integers(0, 2**63, len(asked), dtype=np.uint64)
        answers = generate(student, prompt_ids(build_tokenizer(), asked), seeds, max_tokens=MAX_TOKENS).rows
        rows = RolloutRows(**{name: value.clone() for name, value in vars(answers).items() if value is not None})
        return loss_of(rows, asked, step)

    fit(student, loss_at, num_steps=num_updates or NUM_UPDATES, rate=rate, betas=betas, factor=factor)


def update_loss(
    student: Qwen3ForCausalLM,
    teacher: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    rows: RolloutRows,
    teacher_prompts: Tensor,
) -> Tensor:
    """Reverse KL a token, each model behind its own prompts.

    Args:
        teacher_prompts: [B, P] int64.
    """
    spans = list(zip(rows.input_ids.split(rows.lens.tolist()), rows.prompt_lens.tolist(), strict=True))
    parts = {"prompts": [row[:num] for row, num in spans], "responses": [row[num:] for row, num in spans]}
    parts |= {
        "response_mask": [torch.ones_like(row) for row in parts["responses"]],
        "teacher_prompts": list(teacher_prompts),
    }
    nested = {name: torch.nested.as_nested_tensor(part, layout=torch.jagged) for name, part in parts.items()}
    batch = build_opd_batch(nested, max_length=int(rows.lens.max()))
    assert batch.teacher_rows is not None
    student_states, at = states_of(student, batch.rows)
    with torch.no_grad():
        teacher_states, _ = states_of(teacher, batch.teacher_rows)
    weights = token_weights(at.mask, row_index=at.row, row_weights=torch.ones(batch.rows.num_rows))
    found = head_loss(
        student_states, student.lm_head.weight, at.token_ids, Weights(divergence=weights), Loss("reverse_kl"),
        targets=HiddenTargets(teacher_states, teacher.lm_head.weight), chunk=4096, valid_vocab=len(tokenizer),
    )  # fmt: skip
    return found.loss / len(at.mask)


def states_of(model: Qwen3ForCausalLM, rows: RolloutRows) -> tuple[Tensor, LossPositions]:
    """[N, d] hidden states that predict the response tokens of right-padded rows, and their positions."""
    width = int(rows.lens.max())
    ids = torch.zeros(rows.num_rows, width, dtype=torch.int64)
    ids[torch.repeat_interleave(rows.lens), rows.position_ids] = rows.input_ids
    at = loss_positions(rows, row_starts=padded_row_starts(rows.num_rows, width))
    return model.model(input_ids=ids).last_hidden_state.flatten(0, 1)[at.flat_index], at
