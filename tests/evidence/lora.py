"""How much of a full run's gain a LoRA student reaches, on the toy's additions: the same answers' teacher, rows and loss for both.

`python -m tests.evidence.lora` trains every cell on each seed and writes `LORA.md`; README.md says what is shown.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import yaml
from peft import LoraConfig, get_peft_model
from tests.evidence.alone import Trained, main_of
from tests.evidence.cells import PRIMARY_FILE
from tests.evidence.generate import generate
from tests.evidence.inference import Difference, paired
from tests.evidence.opsd import MAX_TOKENS, prompt_ids, share_right, update_loss
from transformers import Qwen3ForCausalLM

from opd.batch import RolloutRows
from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import split_problems
from opd.data.toy.tokenizer import build_tokenizer
from opd.importance.counter import step_seed


class Claim(NamedTuple):
    """What primary.yaml asks of the seeds: a least share of the full run's gain, and which seeds were added after the first had been seen."""

    cell: str
    share: float
    first: list[int]
    added: list[int]


def primary() -> Claim:
    """Written down before the first run of the seeds, the added ones' before the first of theirs."""
    [listed] = yaml.safe_load(PRIMARY_FILE.read_text())["lora"]
    return Claim(**listed)


SEEDS = (*primary().first, *primary().added)
NUM_UPDATES, BATCH_SIZE, NUM_WARMUP = 40, 64, 5
FULL = "full"
RANKS = {FULL: 0, "lora_8": 8, "lora_1": 1}
RATES = {FULL: 3e-4, "lora_8": 3e-3, "lora_1": 1e-2}
"""Of each cell the best of three on seed 11, which is not judged."""
ALPHA_OVER_RANK = 2


@dataclass(frozen=True, kw_only=True)
class Result(Trained):
    """How many weights were trained as well."""

    num_trained: int


def make_student(rank: int, *, seed: int) -> Qwen3ForCausalLM:
    """The toy's student, with adapters on all its linear layers where `rank` is not 0, as the trainer's engine puts them."""
    student = Qwen3ForCausalLM.from_pretrained(STUDENT_DIR, dtype=torch.float32)
    if rank:
        torch.manual_seed(seed)
        config = LoraConfig(
            r=rank, lora_alpha=ALPHA_OVER_RANK * rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        get_peft_model(student, config)  # in place
    return student


def run(cell: str, *, seed: int, rate: float | None = None) -> Result:
    """Train one student by reverse KL from the toy's teacher on its own answers, and measure it before and after."""
    tokenizer = build_tokenizer()
    teacher = Qwen3ForCausalLM.from_pretrained(TEACHER_DIR, dtype=torch.float32).eval()
    student = make_student(RANKS[cell], seed=seed)
    before = share_right(student, tokenizer, None, seed=seed)
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATES[cell] if rate is None else rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda made: min(1.0, (made + 1) / NUM_WARMUP))
    draw, problems = random.Random(seed), split_problems().train
    for step in range(NUM_UPDATES):
        prompts = prompt_ids(tokenizer, draw.sample(problems, BATCH_SIZE))
        seeds = np.random.default_rng(step_seed(seed, step)).integers(0, 2**63, BATCH_SIZE, dtype=np.uint64)
        answers = generate(student, prompts, seeds, max_tokens=MAX_TOKENS).rows
        rows = RolloutRows(**{name: value.clone() for name, value in vars(answers).items() if value is not None})
        loss = update_loss(student, teacher, tokenizer, rows, prompts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
    after = share_right(student, tokenizer, None, seed=seed)
    return Result(
        cell=cell, seed=seed, before=before, after=after, num_trained=sum(parameter.numel() for parameter in trained)
    )


def beyond(results: Sequence[Result], cell: str) -> Difference:
    """Points of the cell's gain above the claim's share of the full run's, paired by seed: above 0, the share is reached."""
    gains = {(one.cell, one.seed): 100 * one.gain for one in results}
    share, seeds = primary().share, sorted({one.seed for one in results})
    return paired([gains[cell, seed] - share * gains[FULL, seed] for seed in seeds])


def table(results: Sequence[Result]) -> str:
    """Markdown: every run, and each cell against the full run, over the first seeds, the added ones and all."""
    claim = primary()
    lines = ["| cell | seed | trained weights | start | after | gain |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for one in sorted(results, key=lambda one: (list(RANKS).index(one.cell), one.seed)):
        lines.append(
            f"| `{one.cell}` | {one.seed} | {one.num_trained:,} | {one.before:.3f} | {one.after:.3f} | {one.gain:.3f} |"
        )
    lines += ["", f"| cell | seeds | share of the full run's gain | points beyond {claim.share:.0%} of it | 95 % |", "| --- | --- | ---: | ---: | ---: |"]  # fmt: skip
    for cell in (name for name in RANKS if name != FULL):
        name = f"`{cell}` (primary)" if cell == claim.cell else f"`{cell}`"
        for which, seeds in {"first": claim.first, "added": claim.added, "all": SEEDS}.items():
            some = [one for one in results if one.seed in seeds]
            if not some:
                continue
            full, own = (sum(one.gain for one in some if one.cell == each) for each in (FULL, cell))
            found = beyond(some, cell)
            lines.append(
                f"| {name} | {which} {found.num} | {own / full:.3f} | {found.mean:.1f} ± {found.standard_error:.1f} | {found.low:.1f} … {found.high:.1f} |"
            )
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    return main_of(
        sys.modules[__name__],
        argv,
        cells=RANKS,
        run=lambda cell, seed: run(cell, seed=seed),
        title="LoRA students on the toy's additions",
    )


if __name__ == "__main__":
    sys.exit(main())
