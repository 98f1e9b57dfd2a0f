"""A reward and a divergence in one update on the toy's additions: both together, each alone, and stand-ins for the divergence.

`python -m tests.evidence.reward` trains every cell on each seed and writes `REWARD.md`; README.md says what is shown.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import torch
import yaml
from tests.evidence import additions
from tests.evidence.inference import Difference, holm, paired
from tests.evidence.study import PRIMARY_FILE, Trained, fit, main_of
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from opd.batch import RolloutRows
from opd.config.algorithm import Horizon, Policy, Stage
from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import Problem, split_problems
from opd.data.toy.tokenizer import build_tokenizer
from opd.importance import Schedule
from opd.importance.stages import Weights
from opd.losses import HiddenTargets, Loss, head_loss
from opd.losses import Weights as TokenWeights
from opd.losses.terms import PolicyLoss

SEEDS = (1, 2, 3, 4, 5)
NUM_UPDATES, NUM_PROBLEMS, NUM_ANSWERS, LEARNING_RATE = 40, 8, 8, 3e-4
NUM_LESSON_STEPS, LESSON_BATCH, LESSON_RATE, DROPPED_SHARE = 60, 64, 5e-4, 0.4
"""Of the worn teacher: the toy's teacher after lessons of which so many drop every carry, drawn by the seed."""
TOP_K = 2
POLICY_WEIGHT = 1.0


class Cell(NamedTuple):
    """Which teacher the student has, by which divergence, and the weights of both losses in the first and the last update."""

    teacher: str = "good"
    kind: str = "reverse_kl"
    first: Weights = Weights(1.0, 0.0)
    last: Weights = Weights(1.0, 0.0)


_BOTH, _REWARD = Weights(1.0, POLICY_WEIGHT), Weights(0.0, POLICY_WEIGHT)
CELLS = {
    "kl": Cell(),
    "reward": Cell("none", first=_REWARD, last=_REWARD),
    "kl_reward": Cell(first=_BOTH, last=_BOTH),
    "worn_kl": Cell("worn"),
    "worn_kl_to_reward": Cell("worn", first=_BOTH, last=_REWARD),
    "worn_kl_reward": Cell("worn", first=_BOTH, last=_BOTH),
    "sampled_kl": Cell(kind="sampled_reverse_kl"),
    "topk_kl": Cell(kind="topk_reverse_kl"),
}
"""Those of the primary comparisons first."""


@dataclass(frozen=True, kw_only=True)
class Result(Trained):
    """What the teacher knows as well."""

    taught: float
    """The teacher's own."""


class Comparison(NamedTuple):
    """One of primary.yaml's: `cell` less the best of `controls` in each seed, and what is told of the interval."""

    cell: str
    controls: tuple[str, ...]
    margin: float


def primary() -> list[Comparison]:
    """Written down before the first run of the seeds."""
    listed = yaml.safe_load(PRIMARY_FILE.read_text())["reward"]
    return [Comparison(one["cell"], tuple(one["controls"]), one["margin"]) for one in listed]


def weights_at(cell: Cell, step: int) -> Weights:
    """Of an update, from 0, by the trainer's own schedule."""
    stage = Stage(divergence_weight=cell.last.divergence, policy_weight=cell.last.policy, weight_schedule="linear")
    schedule = Schedule(
        stages=(stage,), ends=(NUM_UPDATES,), horizon=Horizon(), total_steps=NUM_UPDATES, response_length=additions.MAX_TOKENS,
        weights=cell.first,
    )  # fmt: skip
    return schedule.weights_at(step + 1)


def make_worn_teacher(tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Qwen3ForCausalLM:
    """The toy's teacher, which has taken to dropping carries."""
    model = Qwen3ForCausalLM.from_pretrained(TEACHER_DIR, dtype=torch.float32)
    draw, problems = random.Random(seed), split_problems().train

    def loss_at(step: int) -> torch.Tensor:
        asked = draw.sample(problems, LESSON_BATCH)
        said = [p.answer_without_carries if draw.random() < DROPPED_SHARE else p.answer for p in asked]
        return additions.lesson(model, tokenizer, additions.prompt_ids(tokenizer, asked), said)

    fit(model, loss_at, num_steps=NUM_LESSON_STEPS, rate=LESSON_RATE)
    return model.eval()


def update_loss(
    student: Qwen3ForCausalLM,
    teacher: Qwen3ForCausalLM,
    rows: RolloutRows,
    kind: str,
    weights: Weights,
    advantages: torch.Tensor,
    token_loss: PolicyLoss,
) -> torch.Tensor:
    """Mean a token of both losses.

    Args:
        advantages: [B] of the rows.
    """
    states, at = additions.states_of(student, rows)
    with torch.no_grad():
        teacher_states, _ = additions.states_of(teacher, rows)
    every = torch.ones(len(at.row))
    params = {"top_k": TOP_K} if kind == "topk_reverse_kl" else {}
    policy = weights.policy * every if weights.policy else None
    # No old log-probabilities: of the only update on these answers every ratio is 1.
    found = head_loss(
        states, student.lm_head.weight, at.token_ids, TokenWeights(weights.divergence * every, policy),
        Loss(kind, params, policy=token_loss), targets=HiddenTargets(teacher_states, teacher.lm_head.weight),
        advantages=None if policy is None else advantages[at.row], chunk=4096, valid_vocab=len(build_tokenizer()),
    )  # fmt: skip
    return found.loss / len(at.row)


@cache
def share_right(model: Qwen3ForCausalLM, *, seed: int) -> float:
    """Of one sampled answer to each held-out problem; of a model that stays what it is."""
    return additions.share_right(model, build_tokenizer(), None, seed=seed)


def run(name: str, models: dict[str, Qwen3ForCausalLM], *, seed: int) -> Result:
    """Train a copy of the toy's student; what differs between cells of a seed is teacher and loss.

    Args:
        models: `start`, and the teachers.
    """
    from opd.trainer.row_facts import group_advantages
    from opd.worker.student_task import policy_loss

    cell, token_loss = CELLS[name], policy_loss(Policy())
    start, teacher = models["start"], models["good" if cell.teacher == "none" else cell.teacher]
    student = deepcopy(start)

    def loss_of(rows: RolloutRows, asked: Sequence[Problem], step: int) -> torch.Tensor:
        scores = torch.tensor([float(right) for right in additions.are_right(rows, asked)])
        advantages = group_advantages(scores, [f"{problem.a}+{problem.b}" for problem in asked], by_std=True)
        return update_loss(student, teacher, rows, cell.kind, weights_at(cell, step), advantages, token_loss)

    def ask(draw: random.Random) -> list[Problem]:
        drawn = draw.sample(split_problems().train, NUM_PROBLEMS)
        return [problem for problem in drawn for _ in range(NUM_ANSWERS)]

    additions.distil(student, loss_of, seed=seed, rate=LEARNING_RATE, ask=ask, num_updates=NUM_UPDATES)
    before, after, taught = (share_right(model, seed=seed) for model in (start, student, teacher))
    return Result(cell=name, seed=seed, before=before, after=after, taught=taught)


def differences(results: Sequence[Result]) -> list[Difference]:
    """Of the primary comparisons, in points, paired by seed."""
    after = {(one.cell, one.seed): 100 * one.after for one in results}
    seeds = sorted({one.seed for one in results})
    return [
        paired([after[one.cell, seed] - max(after[control, seed] for control in one.controls) for seed in seeds])
        for one in primary()
    ]


def verdict(found: Difference, margin: float) -> str:
    """On which side of 0 and of the margin the whole interval lies."""
    for is_so, says in (
        (found.low > margin, f"better, by more than {margin:g}"),
        (found.low > 0, "better"),
        (found.high < -margin, f"worse, by more than {margin:g}"),
        (found.high < 0, "worse"),
        (found.low > -margin, f"not worse by more than {margin:g}"),
    ):
        if is_so:
            return says
    return "undecided"


def table(results: Sequence[Result]) -> str:
    """Markdown: the cells' means, the primary comparisons, and every run."""
    lines = ["| cell | seeds | start | teacher | after |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in CELLS:
        of = [one for one in results if one.cell == name]
        means = [paired([100 * value for value in column]) for column in
                 ([one.before for one in of], [one.taught for one in of], [one.after for one in of])]  # fmt: skip
        told = [f"{mean.mean:.1f}" for mean in means[:2]]
        told[1] = "" if CELLS[name].teacher == "none" else told[1]
        lines.append(
            f"| `{name}` | {len(of)} | {' | '.join(told)} | {means[2].mean:.1f} ± {means[2].standard_error:.1f} |"
        )
    found = differences(results)
    adjusted = holm([one.p for one in found])
    lines += ["", "| primary comparison | points | 95 % | p (Holm) | margin | found |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | --- |"]
    for planned, one, p in zip(primary(), found, adjusted, strict=True):
        control = " or ".join(f"`{name}`" for name in planned.controls)
        lines.append(
            f"| `{planned.cell}` - the better of {control} | {one.mean:.1f} ± {one.standard_error:.1f} | {one.low:.1f} … {one.high:.1f} "
            f"| {p:.2g} | {planned.margin:g} | {verdict(one, planned.margin)} |"
        )
    lines += ["", "| cell | seed | start | teacher | after |", "| --- | ---: | ---: | ---: | ---: |"]
    for one in sorted(results, key=lambda one: (list(CELLS).index(one.cell), one.seed)):
        lines.append(f"| `{one.cell}` | {one.seed} | {one.before:.3f} | {one.taught:.3f} | {one.after:.3f} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    start, good = (
        Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in (STUDENT_DIR, TEACHER_DIR)
    )
    worn = cache(partial(make_worn_teacher, build_tokenizer()))

    def trained(cell: str, seed: int) -> Result:
        models = {"start": start, "good": good} | ({"worn": worn(seed=seed)} if CELLS[cell].teacher == "worn" else {})
        return run(cell, models, seed=seed)

    return main_of(
        sys.modules[__name__],
        argv,
        cells=CELLS,
        run=trained,
        title="A reward and a divergence in one update, on the toy's additions",
    )


if __name__ == "__main__":
    sys.exit(main())
