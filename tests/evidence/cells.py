"""What is compared: every cell of the studies as data, and how many seeds each gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from tests.evidence import models

from opd.config.algorithm import TokenImportance

STUDIES = ("tip", "paced", "horizon", "bridge")
BRIDGE = "bridge"
"""The study of that name, and the cell that it compares the others with."""
FAMILIES = {"importance": STUDIES[:3], BRIDGE: STUDIES[3:]}
"""Studies whose primary comparisons are corrected together: what was planned, run and published before another was planned
keeps its p values."""
PRIMARY_FILE = Path(__file__).with_name("primary.yaml")
NUM_SEEDS, NUM_PRIMARY_SEEDS = 5, 10

StageKind = Literal["forward_kl", "reverse_kl", "sft", "grpo"]
LEARNT_ON_THE_TEACHERS: tuple[StageKind, ...] = ("forward_kl", "sft")
"""Answers; the other kinds need the learner's own."""
START, RAW = "start", "raw"
"""Who is trained: the student's start, or the teacher before RL."""
TEACHER_GRPO, TEACHER_SFT = "teacher_grpo", "teacher_sft"
NUM_TEACHER_STAGES = 4
"""Of five updates each: on seeds 11 and 12 GRPO took the raw teacher from 0.46 to 0.91 in ten, 0.92 in twenty and, on seed 11, from
0.93 to 0.94 in twenty more."""
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
    stages: tuple[StageKind, ...] = ("reverse_kl", "reverse_kl")
    """Half of the settings' updates each; forward KL and SFT are learnt on the teacher's answers, the others on the learner's."""
    then: tuple[StageKind, ...] = ()
    """Stages of a run that goes on from there, with an optimizer of its own."""
    then_on: Literal["new", "replay"] = "replay"
    """Its problems: the half not used so far, or those of the stages before."""
    generated_share: float = 1.0
    """Below 1 an answer ends after this share of the mean length of the start's answers: the rest is never generated."""
    learner: Literal["start", "raw"] = START
    teacher: str | None = models.TEACHER
    """`raw`, or a cell: what it trained. Without one, SFT learns worked answers, GRPO needs none, and in reverse KL's place every
    token that the student drew gets the advantage -1."""

    @property
    def all_stages(self) -> tuple[StageKind, ...]:
        return (*self.stages, *self.then)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One primary comparison: `cell - control`, and what was published about its sign."""

    study: str
    cell: str
    control: str
    claim: Literal["higher", "equal"]
    source: str


@cache
def primary(family: str) -> tuple[Comparison, ...]:
    """The committed comparisons of a family; they count together, which Holm's correction pays for."""
    return tuple(Comparison(**entry) for entry in yaml.safe_load(PRIMARY_FILE.read_text())[family])


def control_of(study: str) -> str:
    """The cell that a study's table compares the others with."""
    return BRIDGE if study == BRIDGE else ALL


def study_cells(study: str) -> list[Cell]:
    """The cells of a study, controls among them; a cell that two studies have is the same run in both."""
    if study == BRIDGE:
        return _bridge()
    return [
        Cell(name=ALL),
        Cell(name=NO_TEACHER, teacher=None),
        *{"tip": _tip, "paced": _paced, "horizon": _horizon}[study](),
    ]


def cell_of(study: str, name: str) -> Cell | None:
    """The study's cell of that name, if it has one."""
    return next((cell for cell in study_cells(study) if cell.name == name), None)


def judged_teacher(study: str, cell: Cell) -> str:
    """The teacher that stands beside a cell's score: its own, or for a cell without one that of the study's control."""
    if cell.teacher is not None:
        return cell.teacher
    control = cell_of(study, control_of(study))
    assert control is not None
    assert control.teacher is not None
    return control.teacher


def seeds_of(cell: str) -> range:
    """1 to 10 where a primary comparison needs the cell, else 1 to 5."""
    is_primary = any(cell in (one.cell, one.control) for family in FAMILIES for one in primary(family))
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


def _bridge() -> list[Cell]:
    """The teacher's GRPO on one half of the labels, its transfer to the student, and what each part is good for."""
    transfer: tuple[StageKind, ...] = ("forward_kl", "reverse_kl")
    whole = Cell(name=BRIDGE, stages=transfer, teacher=TEACHER_GRPO)
    grpo: tuple[StageKind, ...] = ("grpo", "grpo")
    direct = Cell(name="direct_grpo", stages=grpo, teacher=None)
    return [
        Cell(name=TEACHER_GRPO, learner=RAW, stages=NUM_TEACHER_STAGES * ("grpo",), teacher=None),
        Cell(name=TEACHER_SFT, learner=RAW, stages=NUM_TEACHER_STAGES * ("sft",), teacher=None),
        whole,
        direct,
        replace(direct, name="direct_grpo_same_tokens", stages=(NUM_TEACHER_STAGES + len(transfer)) * ("grpo",)),
        replace(whole, name="no_warmup", stages=("reverse_kl", "reverse_kl")),
        replace(whole, name="forward_kl_only", stages=("forward_kl", "forward_kl")),
        replace(whole, name="hard_sft_only", stages=("sft", "sft")),
        replace(whole, name="raw_teacher", teacher=RAW),
        replace(whole, name="sft_teacher", teacher=TEACHER_SFT),
        replace(whole, name="stage3_new", then=grpo, then_on="new"),
        replace(whole, name="stage3_replay", then=grpo, then_on="replay"),
        replace(whole, name="opd_goes_on", then=("reverse_kl", "reverse_kl"), then_on="new"),
        replace(direct, name="direct_grpo_goes_on", then=grpo, then_on="new"),
    ]
