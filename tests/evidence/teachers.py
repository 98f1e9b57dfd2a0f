"""Two teachers that each know half of the toy's additions: routed by the kind of problem, and each alone.

`python -m tests.evidence.teachers` trains every cell on each seed and writes `TEACHERS.md`; README.md says what is shown.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import yaml
from tests.evidence import additions
from tests.evidence.generate import generate
from tests.evidence.inference import Difference, paired
from tests.evidence.study import PRIMARY_FILE, fit, main_of
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from opd.batch import RolloutRows
from opd.config.sections import Route
from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import Problem, split_problems
from opd.data.toy.tokenizer import build_tokenizer
from opd.importance.counter import step_seed
from opd.losses import HiddenTargets, Loss, Weights, head_loss

SEEDS = (1, 2, 3, 4, 5)
NUM_UPDATES, BATCH_SIZE, LEARNING_RATE = 100, 64, 1e-3
NUM_LESSON_STEPS, LESSON_BATCH, LESSON_RATE, TEACHER_SEED = 200, 64, 1e-3, 0
KINDS = ("even", "odd")
"""A problem's, by its first operand: its `data_source`, and the name of the teacher that knows it."""
CELLS = {
    "routed": Route(to={"toy_even": "even", "toy_odd": "odd"}),
    "even_alone": Route(all="even"),
    "odd_alone": Route(all="odd"),
}
"""`route` of an experiment with the teachers `even` and `odd`."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Held-out shares of right answers, sampled at temperature 1; both kinds of problem are half of all."""

    cell: str
    seed: int
    before: float
    even: float
    odd: float

    @property
    def after(self) -> float:
        return (self.even + self.odd) / 2


class Claim(NamedTuple):
    """What primary.yaml asks of the seeds, in points of the share of all problems."""

    cell: str
    more_than: float
    alone: tuple[str, ...]
    at_most: float


def primary() -> Claim:
    """Written down before the first run of the seeds."""
    [listed] = yaml.safe_load(PRIMARY_FILE.read_text())["teachers"]
    return Claim(listed["cell"], listed["more_than"], tuple(listed["alone"]), listed["at_most"])


def kind_of(problem: Problem) -> str:
    return KINDS[problem.a % 2]


@cache
def problems(split: str) -> list[Problem]:
    """Of a split those that carry: a pupil who drops every carry has none of them right."""
    return [p for p in getattr(split_problems(), split) if p.answer != p.answer_without_carries]


def make_teacher(tokenizer: PreTrainedTokenizerBase, knows: str, *, seed: int = TEACHER_SEED) -> Qwen3ForCausalLM:
    """The toy's teacher after lessons in which problems of the other kind drop every carry: one for all seeds."""
    model = Qwen3ForCausalLM.from_pretrained(TEACHER_DIR, dtype=torch.float32)
    draw = random.Random(f"{seed} {knows}")

    def loss_at(step: int) -> torch.Tensor:
        asked = draw.sample(problems("train"), LESSON_BATCH)
        said = [p.answer if kind_of(p) == knows else p.answer_without_carries for p in asked]
        return additions.lesson(model, tokenizer, additions.prompt_ids(tokenizer, asked), said)

    fit(model, loss_at, num_steps=NUM_LESSON_STEPS, rate=LESSON_RATE, factor=lambda step: 1 - step / NUM_LESSON_STEPS)
    return model.eval()


def shares_right(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> dict[str, float]:
    """Of one sampled answer to each held-out problem, by kind."""
    asked = problems("heldout")
    seeds = np.random.default_rng(step_seed(seed, -1)).integers(0, 2**63, len(asked), dtype=np.uint64)
    rows = generate(model, additions.prompt_ids(tokenizer, asked), seeds, max_tokens=additions.MAX_TOKENS).rows
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for is_right, problem in zip(additions.are_right(rows, asked), asked, strict=True):
        right[kind_of(problem)].append(is_right)
    return {kind: sum(found) / len(found) for kind, found in right.items()}


def update_loss(
    student: Qwen3ForCausalLM,
    teachers: Mapping[str, Qwen3ForCausalLM],
    rows: RolloutRows,
    kinds: Sequence[str],
    route: Route,
) -> torch.Tensor:
    """Reverse KL a token, of each row from its own teacher.

    Args:
        kinds: of the rows.
    """
    states, at = additions.states_of(student, rows)
    names = [route.of(f"toy_{kind}") for kind in kinds]
    total = torch.zeros(())
    for name in sorted(set(names)):
        mine = torch.tensor([name == other for other in names])[at.row]
        with torch.no_grad():
            read, _ = additions.states_of(teachers[name], rows)
        total = total + head_loss(
            states[mine], student.lm_head.weight, at.token_ids[mine], Weights(divergence=torch.ones(int(mine.sum()))),
            Loss("reverse_kl"), targets=HiddenTargets(read[mine], teachers[name].lm_head.weight), chunk=4096,
            valid_vocab=len(build_tokenizer()),
        ).loss  # fmt: skip
    return total / len(at.row)


def run(cell: str, models: Mapping[str, Qwen3ForCausalLM], *, seed: int) -> Result:
    """Distil a copy of the toy's student; what differs between cells of a seed is who reads which problem.

    Args:
        models: `start`, and the teachers by the kind that they know.
    """
    tokenizer, start = build_tokenizer(), models["start"]
    teachers, student = {kind: models[kind] for kind in KINDS}, deepcopy(start)
    additions.distil(
        student,
        lambda rows, asked, step: update_loss(student, teachers, rows, [kind_of(p) for p in asked], CELLS[cell]),
        seed=seed, rate=LEARNING_RATE, ask=lambda draw: draw.sample(problems("train"), BATCH_SIZE),
        num_updates=NUM_UPDATES, factor=lambda step: min(1.0, (step + 1) / 5, 2 * (1 - step / NUM_UPDATES)),
    )  # fmt: skip
    before, after = (shares_right(model, tokenizer, seed=seed) for model in (start, student))
    return Result(cell=cell, seed=seed, before=sum(before.values()) / 2, even=after["even"], odd=after["odd"])


def of_cell(results: Sequence[Result], cell: str, what: str = "after") -> Difference:
    """Mean and interval over the seeds, in points."""
    return paired([100 * getattr(one, what) for one in results if one.cell == cell])


def verdict(results: Sequence[Result]) -> dict[str, bool]:
    """What the claim says of each of its cells, and whether the whole interval bears it out."""
    claim = primary()
    found = {f"`{claim.cell}` above {claim.more_than:g}": of_cell(results, claim.cell).low > claim.more_than}
    for cell in claim.alone:
        found[f"`{cell}` at most {claim.at_most:g}"] = of_cell(results, cell).high <= claim.at_most
    return found


def table(results: Sequence[Result]) -> str:
    """Markdown: the cells' means, the claims, and every run."""
    lines = ["| cell | seeds | start | even | odd | both | 95 % |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for cell in CELLS:
        before, even, odd, after = (of_cell(results, cell, what) for what in ("before", "even", "odd", "after"))
        lines.append(
            f"| `{cell}` | {after.num} | {before.mean:.1f} | {even.mean:.1f} | {odd.mean:.1f} "
            f"| {after.mean:.1f} ± {after.standard_error:.1f} | {after.low:.1f} … {after.high:.1f} |"
        )
    lines += ["", "| primary claim, of the whole interval | found |", "| --- | --- |"]
    lines += [f"| {claim} | {'yes' if so else 'no'} |" for claim, so in verdict(results).items()]
    lines += ["", "| cell | seed | start | even | odd | both |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for one in sorted(results, key=lambda one: (list(CELLS).index(one.cell), one.seed)):
        lines.append(
            f"| `{one.cell}` | {one.seed} | {one.before:.3f} | {one.even:.3f} | {one.odd:.3f} | {one.after:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    start = Qwen3ForCausalLM.from_pretrained(STUDENT_DIR, dtype=torch.float32).eval()
    tokenizer = build_tokenizer()
    teacher = cache(lambda kind: make_teacher(tokenizer, kind))
    return main_of(
        sys.modules[__name__],
        argv,
        cells=CELLS,
        run=lambda cell, seed: run(cell, {"start": start} | {kind: teacher(kind) for kind in KINDS}, seed=seed),
        title="Two teachers that each know half of the toy's additions",
    )


if __name__ == "__main__":
    sys.exit(main())
