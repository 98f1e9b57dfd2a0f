"""Self-distillation with a privileged prompt on the toy's additions: a student taught by itself, who reads the answer in its prompt.

`python -m tests.evidence.opsd` makes the starts, trains every cell on each seed and writes `OPSD.md`; README.md says what is shown.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from tests.evidence.alone import Trained, main_of
from tests.evidence.generate import generate
from tests.evidence.inference import Difference, holm, paired
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from opd.batch import RolloutRows, build_opd_batch, loss_positions, padded_row_starts
from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import Problem, make_row, split_problems
from opd.data.toy.tokenizer import build_tokenizer
from opd.importance.counter import step_seed
from opd.losses import chunked_divergence, token_weights
from opd.trainer.teacher_prompts import own_messages

TEMPLATE = "{prompt}({reward_model.ground_truth})"
"""`48+75=` becomes `48+75=(123)`: `teacher.prompt` of an experiment on these files."""
SEEDS = (1, 2, 3, 4, 5)
NUM_LESSON_STEPS, LESSON_BATCH, LESSON_RATE = 300, 128, 1e-3
DROPPED_SHARE = 0.8
"""Of the lessons without a hint drop every carry. The student would rather not carry, and what it can is left in the others."""
NUM_UPDATES, BATCH_SIZE, LEARNING_RATE, NUM_WARMUP = 40, 64, 3e-4, 5
REFRESH_EVERY = 10
MAX_TOKENS = 4
CELLS = ("hint", "shuffled", "no_hint", "refreshed", "teacher")
"""What the student's teacher is, and reads: its start with the answer, with another problem's answer, with the student's prompt; the
student of every tenth update with the answer; the toy's teacher, a better model, with the student's prompt."""
PRIMARY = (("hint", "no_hint"), ("hint", "shuffled"))
"""Written before the first run of the seeds: the score after `hint` is higher than after each of the others."""


@dataclass(frozen=True, kw_only=True)
class Result(Trained):
    """What the teacher knows as well; the student's share is that behind its own prompt."""

    taught: float
    """The teacher's own share of right answers behind what it reads, at the start."""


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


def make_start(tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Qwen3ForCausalLM:
    """The toy's student, taught to say the number of a hint, right or not, and without one to drop carries more often than not.

    A language model reads hints from its pretraining; the toy's student has never seen one. Half of the hints are of other
    problems, so that it learns to read them and not to try harder where there is one.
    """
    model = Qwen3ForCausalLM.from_pretrained(STUDENT_DIR, dtype=torch.float32)
    draw, problems = random.Random(seed), split_problems().train
    optimizer = torch.optim.AdamW(model.parameters(), lr=LESSON_RATE, weight_decay=0.0)
    half = LESSON_BATCH // 2
    for _ in range(NUM_LESSON_STEPS):
        hinted, plain, others = (draw.sample(problems, half) for _ in range(3))
        hints = [(own if draw.random() < 0.5 else other).answer for own, other in zip(hinted, others, strict=True)]
        said = [p.answer_without_carries if draw.random() < DROPPED_SHARE else p.answer for p in plain]
        loss = _lesson(model, tokenizer, prompt_ids(tokenizer, hinted, hints), hints)
        loss = loss + _lesson(model, tokenizer, prompt_ids(tokenizer, plain), said)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def _lesson(
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
    responses = [
        row[-num:]
        for row, num in zip(rows.input_ids.split(rows.lens.tolist()), rows.response_lens.tolist(), strict=True)
    ]
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    return sum(text == problem.answer for text, problem in zip(texts, problems, strict=True)) / len(problems)


def hints_of(cell: str, problems: Sequence[Problem], others: Sequence[Problem]) -> list[str] | None:
    """What the cell's teacher reads of each problem; None: the student's prompt."""
    if cell in ("no_hint", "teacher"):
        return None
    return [problem.answer for problem in (others if cell == "shuffled" else problems)]


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
    student_states, at = _states(student, batch.rows)
    with torch.no_grad():
        teacher_states, _ = _states(teacher, batch.teacher_rows)
    found = chunked_divergence(
        student_states, student.lm_head.weight, teacher_states, teacher.lm_head.weight, "reverse_kl",
        token_weights=token_weights(at.mask, row_index=at.row, row_weights=torch.ones(batch.rows.num_rows)),
        beta=0.0, temperature=1.0, chunk_size=4096, valid_vocab=len(tokenizer),
    )  # fmt: skip
    return found.loss_sum / len(at.mask)


def _states(model: Qwen3ForCausalLM, rows: RolloutRows) -> tuple[Tensor, object]:
    """[N, d] hidden states that predict the response tokens of right-padded rows, and their positions."""
    width = int(rows.lens.max())
    ids = torch.zeros(rows.num_rows, width, dtype=torch.int64)
    ids[torch.repeat_interleave(rows.lens), rows.position_ids] = rows.input_ids
    at = loss_positions(rows, row_starts=padded_row_starts(rows.num_rows, width))
    return model.model(input_ids=ids).last_hidden_state.flatten(0, 1)[at.flat_index], at


def run(cell: str, start: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Result:
    """Distil a copy of the start; what differs between cells of a seed is the teacher and what it reads."""
    student = deepcopy(start)
    teacher = start if cell != "teacher" else Qwen3ForCausalLM.from_pretrained(TEACHER_DIR, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(student.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / NUM_WARMUP))
    draw, problems = random.Random(seed), split_problems().train
    for step in range(NUM_UPDATES):
        if cell == "refreshed" and step % REFRESH_EVERY == 0:
            teacher = deepcopy(student)
        asked, others = draw.sample(problems, BATCH_SIZE), draw.sample(problems, BATCH_SIZE)
        seeds = np.random.default_rng(step_seed(seed, step)).integers(0, 2**63, BATCH_SIZE, dtype=np.uint64)
        answers = generate(student, prompt_ids(tokenizer, asked), seeds, max_tokens=MAX_TOKENS).rows
        rows = RolloutRows(**{name: value.clone() for name, value in vars(answers).items() if value is not None})
        read = prompt_ids(tokenizer, asked, hints_of(cell, asked, others))
        loss = update_loss(student, teacher, tokenizer, rows, read)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    heldout = split_problems().heldout
    shuffled = random.Random(seed).sample(heldout, len(heldout))
    hints = hints_of(cell, heldout, shuffled)
    return Result(
        cell=cell,
        seed=seed,
        before=share_right(start, tokenizer, None, seed=seed),
        after=share_right(student, tokenizer, None, seed=seed),
        taught=share_right(
            teacher if cell == "teacher" else start, tokenizer, None if hints is None else hints.__getitem__, seed=seed
        ),
    )


def differences(results: Sequence[Result]) -> dict[tuple[str, str], Difference]:
    """Of the primary comparisons, in points, paired by seed."""
    after = {(one.cell, one.seed): 100 * one.after for one in results}
    seeds = sorted({one.seed for one in results})
    return {
        (cell, control): paired([after[cell, seed] - after[control, seed] for seed in seeds])
        for cell, control in PRIMARY
    }


def table(results: Sequence[Result]) -> str:
    """Markdown: every run, and the primary comparisons."""
    lines = ["| cell | seed | start | teacher behind its prompt | after |", "| --- | ---: | ---: | ---: | ---: |"]
    for one in sorted(results, key=lambda one: (CELLS.index(one.cell), one.seed)):
        lines.append(f"| `{one.cell}` | {one.seed} | {one.before:.3f} | {one.taught:.3f} | {one.after:.3f} |")
    found = differences(results)
    adjusted = holm([one.p for one in found.values()])
    lines += ["", "| primary comparison | points | 95 % | p (Holm) |", "| --- | ---: | ---: | ---: |"]
    for ((cell, control), one), p in zip(found.items(), adjusted, strict=True):
        lines.append(
            f"| `{cell}` - `{control}` | {one.mean:.1f} ± {one.standard_error:.1f} | {one.low:.1f} … {one.high:.1f} | {p:.2g} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """On every seed from a start of its own."""
    tokenizer = build_tokenizer()

    @cache
    def start(seed: int) -> Qwen3ForCausalLM:
        return make_start(tokenizer, seed=seed)

    return main_of(
        sys.modules[__name__],
        argv,
        cells=CELLS,
        run=lambda cell, seed: run(cell, start(seed), tokenizer, seed=seed),
        title="Self-distillation with a privileged prompt, on the toy's additions",
    )


if __name__ == "__main__":
    sys.exit(main())
