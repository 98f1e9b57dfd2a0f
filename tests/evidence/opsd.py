"""Self-distillation with a privileged prompt on the toy's additions: a student taught by itself, who reads the answer in its prompt.

`python -m tests.evidence.opsd` makes the starts, trains every cell on each seed and writes `OPSD.md`; README.md says what is shown.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import torch
from tests.evidence.additions import distil, lesson, prompt_ids, share_right, update_loss
from tests.evidence.inference import Difference, holm, paired
from tests.evidence.study import Trained, fit, main_of
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from opd.batch import RolloutRows
from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import Problem, split_problems
from opd.data.toy.tokenizer import build_tokenizer

SEEDS = (1, 2, 3, 4, 5)
NUM_LESSON_STEPS, LESSON_BATCH, LESSON_RATE = 300, 128, 1e-3
DROPPED_SHARE = 0.8
"""Of the lessons without a hint drop every carry. The student would rather not carry, and what it can is left in the others."""
LEARNING_RATE, BATCH_SIZE, REFRESH_EVERY = 3e-4, 64, 10
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


def make_start(tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Qwen3ForCausalLM:
    """The toy's student, taught to say the number of a hint, right or not, and without one to drop carries more often than not.

    A language model reads hints from its pretraining; the toy's student has never seen one. Half of the hints are of other
    problems, so that it learns to read them and not to try harder where there is one.
    """
    model = Qwen3ForCausalLM.from_pretrained(STUDENT_DIR, dtype=torch.float32)
    draw, problems, half = random.Random(seed), split_problems().train, LESSON_BATCH // 2

    def loss_at(step: int) -> Tensor:
        hinted, plain, others = (draw.sample(problems, half) for _ in range(3))
        hints = [(own if draw.random() < 0.5 else other).answer for own, other in zip(hinted, others, strict=True)]
        said = [p.answer_without_carries if draw.random() < DROPPED_SHARE else p.answer for p in plain]
        loss = lesson(model, tokenizer, prompt_ids(tokenizer, hinted, hints), hints)
        return loss + lesson(model, tokenizer, prompt_ids(tokenizer, plain), said)

    fit(model, loss_at, num_steps=NUM_LESSON_STEPS, rate=LESSON_RATE)
    return model.eval()


def hints_of(cell: str, problems: Sequence[Problem], others: Sequence[Problem]) -> list[str] | None:
    """What the cell's teacher reads of each problem; None: the student's prompt."""
    if cell in ("no_hint", "teacher"):
        return None
    return [problem.answer for problem in (others if cell == "shuffled" else problems)]


def run(cell: str, start: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Result:
    """Distil a copy of the start; what differs between cells of a seed is the teacher and what it reads."""
    student = deepcopy(start)
    teacher = start if cell != "teacher" else Qwen3ForCausalLM.from_pretrained(TEACHER_DIR, dtype=torch.float32).eval()
    others: Sequence[Problem] = ()

    def ask(draw: random.Random) -> Sequence[Problem]:
        nonlocal others
        asked, others = (draw.sample(split_problems().train, BATCH_SIZE) for _ in range(2))
        return asked

    def loss_of(rows: RolloutRows, asked: Sequence[Problem], step: int) -> Tensor:
        nonlocal teacher
        if cell == "refreshed" and step % REFRESH_EVERY == 0:
            teacher = deepcopy(student)
        return update_loss(
            student, teacher, tokenizer, rows, prompt_ids(tokenizer, asked, hints_of(cell, asked, others))
        )

    distil(student, loss_of, seed=seed, rate=LEARNING_RATE, ask=ask)
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
