"""What is compared: every cell of the three studies as data, and how many seeds each gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from opd.config.algorithm import TokenImportance
from opd.losses import DivergenceKind

STUDIES = ("tip", "paced", "horizon")
PRIMARY_FILE = Path(__file__).with_name("primary.yaml")
NUM_SEEDS, NUM_PRIMARY_SEEDS = 5, 10

Problems = Literal["uniform", "hard_filter", "competence", "random"]
ALL = "all"
"""The cell that every study compares with: every token of every problem, reverse KL on the student's own answers."""
NO_TEACHER = "no_teacher"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way to train; the seed says on what."""

    name: str
    tokens: TokenImportance = TokenImportance()  # noqa: RUF009  # frozen
    problems: Problems = "uniform"
    """`random` keeps as many problems as the hard filter does, whichever: its control."""
    stages: tuple[DivergenceKind, DivergenceKind] = ("reverse_kl", "reverse_kl")
    """First and second half of the updates; forward KL is learnt on the teacher's answers, reverse KL on the student's."""
    generated_share: float = 1.0
    """Below 1 an answer ends after this share of the mean length of the start's answers: the rest is never generated."""
    teacher: bool = True
    """Without one, every token that the student drew gets the advantage -1."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One primary comparison: `cell - control`, and what was published about its sign."""

    study: str
    cell: str
    control: str
    claim: Literal["higher", "equal"]
    source: str


@cache
def primary() -> tuple[Comparison, ...]:
    """The committed comparisons; they count together, which Holm's correction pays for."""
    return tuple(Comparison(**entry) for entry in yaml.safe_load(PRIMARY_FILE.read_text())["comparisons"])


def study_cells(study: str) -> list[Cell]:
    """The cells of a study, controls among them; a cell that two studies have is the same run in both."""
    return [
        Cell(name=ALL),
        Cell(name=NO_TEACHER, teacher=False),
        *{"tip": _tip, "paced": _paced, "horizon": _horizon}[study](),
    ]


def seeds_of(cell: str) -> range:
    """1 to 10 where a primary comparison needs the cell, else 1 to 5."""
    is_primary = any(cell in (one.cell, one.control) for one in primary())
    return range(1, 1 + (NUM_PRIMARY_SEEDS if is_primary else NUM_SEEDS))


def _tip() -> list[Cell]:
    ways = {
        "soft_or": TokenImportance(score="soft_or"),
        "entropy": TokenImportance(score="entropy", mode="sample"),
        "divergence": TokenImportance(score="divergence"),
        "random": TokenImportance(score="random"),
        "position": TokenImportance(score="position"),
        "bottom": TokenImportance(score="soft_or", mode="bottomk"),
    }
    return [_chosen(name, way, percent) for name, way in ways.items() for percent in (50, 20, 10)]


def _chosen(name: str, way: TokenImportance, percent: int) -> Cell:
    return Cell(name=f"{name}_{percent}", tokens=way.model_copy(update={"ratio": percent / 100}))


def _paced() -> list[Cell]:
    orders = {
        "forward_reverse": ("forward_kl", "reverse_kl"),
        "forward_forward": ("forward_kl",) * 2,
        "reverse_forward": ("reverse_kl", "forward_kl"),
    }
    return [
        Cell(name="hard_filter", problems="hard_filter"),
        Cell(name="competence", problems="competence"),
        Cell(name="random_problems", problems="random"),
        *(replace(Cell(name=name), stages=stages) for name, stages in orders.items()),
    ]


def _horizon() -> list[Cell]:
    last = TokenImportance(score="position", position="last")
    return [
        *(Cell(name=f"first_{percent}", generated_share=percent / 100) for percent in (30, 10)),
        *(_chosen("last", last, percent) for percent in (30, 10)),
        *(_chosen("random", TokenImportance(score="random"), percent) for percent in (30, 10)),
    ]
