"""How much of a full run's gain a LoRA student reaches, on the toy's additions: the same answers' teacher, rows and loss for both.

`python -m tests.evidence.lora` trains every cell on each seed and writes `LORA.md`; README.md says what is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import yaml
from peft import LoraConfig, get_peft_model
from tests.evidence.additions import distil, prompt_ids, share_right, update_loss
from tests.evidence.inference import Difference, paired
from tests.evidence.study import PRIMARY_FILE, Trained, main_of
from transformers import Qwen3ForCausalLM

from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.tokenizer import build_tokenizer


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


def run(cell: str, *, seed: int) -> Result:
    """Train one student by reverse KL from the toy's teacher on its own answers, and measure it before and after."""
    tokenizer = build_tokenizer()
    teacher = Qwen3ForCausalLM.from_pretrained(TEACHER_DIR, dtype=torch.float32).eval()
    student = make_student(RANKS[cell], seed=seed)
    before = share_right(student, tokenizer, None, seed=seed)
    distil(
        student,
        lambda rows, asked, step: update_loss(student, teacher, tokenizer, rows, prompt_ids(tokenizer, asked)),
        seed=seed, rate=RATES[cell], betas=(0.9, 0.999),
    )  # fmt: skip
    after = share_right(student, tokenizer, None, seed=seed)
    return Result(
        cell=cell,
        seed=seed,
        before=before,
        after=after,
        num_trained=sum(p.numel() for p in student.parameters() if p.requires_grad),
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
