"""The addition task: its problems, their hash split and their rows in verl's parquet columns (torch-free)."""

import hashlib
import os
import random
from pathlib import Path
from typing import NamedTuple

from opd.data import math_sources
from opd.data.rows import CONVERSATIONS, SCHEMA, Row, prompt_row, write_files
from opd.experiment.algorithm import MESSAGES

DATA_SOURCE = "toy_add"
NUM_OPERANDS = 100
"""Operands are 0 ... NUM_OPERANDS - 1."""
HELDOUT_FRACTION = 0.05
VALIDATION_FRACTION = 0.05
SPLIT_SALT = "opd-toy"
"""Fixed: another salt is another split, and the committed models would have been trained on held-out problems."""


class Problem(NamedTuple):
    """One ordered pair of operands: `a + b = ?`."""

    a: int
    b: int

    @property
    def pair_index(self) -> int:
        """Return the problem's number among all ordered pairs, the same in every file, order and seed."""
        return self.a * NUM_OPERANDS + self.b

    @property
    def question(self) -> str:
        """Return the user message: both operands with two digits, as in `07+34=`."""
        return f"{self.a:02d}+{self.b:02d}="

    @property
    def answer(self) -> str:
        """Return the whole response of a correct model: the sum with three digits, as in `041`."""
        return f"{self.a + self.b:03d}"

    @property
    def answer_without_carries(self) -> str:
        """Return the sum without any carry: right for the three problems in ten that carry nothing."""
        tens, units = (self.a // 10 + self.b // 10) % 10, (self.a % 10 + self.b % 10) % 10
        return f"0{tens}{units}"

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the conversation to answer: one user turn."""
        return [{"role": "user", "content": self.question}]


class Splits(NamedTuple):
    """All problems in the order of their index; `validation` is a slice *of* `train`."""

    train: list[Problem]
    heldout: list[Problem]
    validation: list[Problem]


def all_problems() -> list[Problem]:
    """Return every ordered pair, in the order of its index."""
    return [Problem(a, b) for a in range(NUM_OPERANDS) for b in range(NUM_OPERANDS)]


def hash_fraction(problem: Problem) -> float:
    """Return a number in [0, 1) that depends on the *unordered* pair only, so that a+b and b+a are in one part."""
    low, high = sorted(problem)
    digest = hashlib.sha256(f"{SPLIT_SALT}:{low}:{high}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def split_problems() -> Splits:
    """Return the fixed split of all problems.

    Held-out problems are in no training data at all. `validation` is a slice of the training split on which the
    committed models are not trained either; a distillation may train on it.
    """
    problems = all_problems()
    fractions = [hash_fraction(problem) for problem in problems]
    validation_end = HELDOUT_FRACTION + VALIDATION_FRACTION
    return Splits(
        train=[p for p, f in zip(problems, fractions, strict=True) if f >= HELDOUT_FRACTION],
        heldout=[p for p, f in zip(problems, fractions, strict=True) if f < HELDOUT_FRACTION],
        validation=[p for p, f in zip(problems, fractions, strict=True) if HELDOUT_FRACTION <= f < validation_end],
    )


def make_row(problem: Problem, split: str) -> Row:
    """Return one row in verl's columns; `extra_info.index` is `pair_index`, not its position in the file."""
    asked = math_sources.Problem(
        problem.pair_index, problem.question.removesuffix("="), problem.question, problem.answer
    )
    return prompt_row(asked, data_source=DATA_SOURCE, split=split, variant="none")


def write_parquet(out_dir: str | os.PathLike[str], *, seed: int, as_conversations: bool = False) -> tuple[Path, Path]:
    """Write `train.parquet` and `heldout.parquet`, whole or not at all, and return their paths.

    The seed decides the order of the training rows. The held-out rows do not depend on it: two seeds are judged on the
    same problems.

    Args:
        as_conversations: write each question with its answer, for supervised fine-tuning.
    """
    splits, folder = split_problems(), Path(out_dir)
    sides = {"train": random.Random(seed).sample(splits.train, len(splits.train))}
    sides["heldout"] = random.Random(0).sample(splits.heldout, len(splits.heldout))
    tables = {
        folder / f"{split}.parquet": [
            {MESSAGES: [*one.messages, {"role": "assistant", "content": one.answer}]}
            if as_conversations
            else make_row(one, split)
            for one in problems
        ]
        for split, problems in sides.items()
    }
    write_files(tables, {}, schema=CONVERSATIONS if as_conversations else SCHEMA)
    train, heldout = tables
    return train, heldout
