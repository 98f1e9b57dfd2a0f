"""Inputs for which the fused divergence's error is largest, or most above what it reports, found by an optimiser.

    python -m tests.benchmarks.gpu.search_error --seconds 60 --json OUT.json

The student's hidden states are the unit vectors, so its logits are its head's columns and d loss / d head is the logits' own
gradient: its error against float64 is that of storing logits and gradient, and of nothing else. A batch is drawn from a few
parameters (`Traits`), some rows at odds with the teacher, the rest near it; a (mu, lambda) evolution strategy
moves them among batches with a divergence of at least `MIN_DIVERGENCE`. Two goals for each kind: the error over what is reported, and the error itself; and the error of d loss / d hidden
is noted, which a head whose rows have much in common makes larger than any number of the logits' gradient can tell.
"""

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.gpu.facts import machine
from torch import Tensor

from opd.losses.divergence import DIVERGENCE_KINDS, DivergenceKind, divergence
from opd.losses.fused import head_divergence

TOKENS, ENTRIES = 128, 5003
PARENTS, CHILDREN = 6, 24
# Nats a token. Of rows that put all their mass on one token, as the teacher does, the gradient is some 1e-30, and an error relative to it says nothing.
MIN_DIVERGENCE = 1e-6
# Of each trait: lowest, highest, and whether it is a power of ten.
RANGES = {
    "spread": (-0.7, 1.6, True),
    "noise": (-4.0, 0.3, True),
    "at_odds": (0.0, 0.5, False),
    "first_at_odds": (0.0, 16.0, False),
    "every": (1.0, 32.0, False),
    "weight_of_odds": (-3.0, 3.0, True),
    "common": (-1.0, 1.5, True),
    "peak": (0.0, 40.0, False),
    "temperature": (-0.3, 0.3, True),
}


@dataclass(frozen=True)
class Traits:
    """What a batch is drawn from."""

    spread: float
    """Standard deviation of the student's logits."""
    noise: float
    """Of the teacher's logits less the student's, where they are near."""
    at_odds: float
    """Share of the rows whose teacher has logits of its own."""
    first_at_odds: float
    every: float
    """They begin at this row and lie so far apart."""
    weight_of_odds: float
    """Their weight; the others' is 1."""
    common: float
    """What every entry's logit has added."""
    peak: float
    """By how much one entry of each row is raised, the same on both sides."""
    temperature: float

    @classmethod
    def of(cls, point: np.ndarray) -> "Traits":
        """From a point of the unit cube."""
        values = {}
        for (name, (low, high, is_power)), at in zip(RANGES.items(), point, strict=True):
            value = low + (high - low) * float(at)
            values[name] = 10.0**value if is_power else value
        return cls(**values)


def draw(traits: Traits, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Student hidden and head, teacher hidden and head; token weights."""
    generator = torch.Generator("cuda").manual_seed(1)

    def normal() -> Tensor:
        return torch.randn(ENTRIES, TOKENS, device="cuda", generator=generator)

    rows = torch.arange(TOKENS, device="cuda")
    student = normal() * traits.spread + traits.common
    student[rows * 7 % ENTRIES, rows] += traits.peak
    near, own = normal() * traits.noise, normal() * traits.spread - student
    step = max(1, round(traits.every))
    order = ((rows - int(traits.first_at_odds)) % step).argsort(stable=True)
    odds = torch.zeros(TOKENS, dtype=torch.bool, device="cuda")
    odds[order[: round(traits.at_odds * TOKENS)]] = True
    unit = torch.eye(TOKENS, device="cuda", dtype=dtype)
    # The teacher's logits are a sum of two columns, so that a small difference keeps its digits.
    heads = [
        unit,
        student.to(dtype),
        torch.cat([unit, unit], 1),
        torch.cat([student, torch.where(odds, own, near)], 1).to(dtype),
    ]
    return heads, torch.where(odds, traits.weight_of_odds, 1.0)


def measure(traits: Traits, kind: DivergenceKind, dtype: torch.dtype) -> dict[str, Any]:
    """Errors and what the call reports of them."""
    heads, weights = draw(traits, dtype)
    student, teacher = heads[1].double().T, heads[3].double() @ heads[2].double().T
    logits = student.clone().requires_grad_()
    value = divergence(logits, teacher.T, kind, beta=0.5, temperature=traits.temperature)
    (value * weights.double()).sum().backward()
    exact = logits.grad
    assert exact is not None
    hidden, weight = heads[0].float().requires_grad_(), heads[1].clone().requires_grad_()
    weight.grad_dtype = torch.float32
    output = head_divergence(
        hidden, weight, heads[2], heads[3], kind,
        token_weights=weights, beta=0.5, temperature=traits.temperature, chunk_size=512, workspace_gib=1.0, backend="fused",
    )  # fmt: skip
    output.loss_sum.backward()
    assert weight.grad is not None
    assert hidden.grad is not None
    hidden_exact = exact @ heads[1].double()
    return {
        "error": float((weight.grad.double().T - exact).norm() / exact.norm()),
        "error_hidden": float((hidden.grad.double() - hidden_exact).norm() / hidden_exact.norm()),
        "divergence": float(value.detach().mean()),
        "reported": output.expected_error,
        "logits": output.precision,
    }


def search(kind: DivergenceKind, dtype: torch.dtype, goal: str, seconds: float) -> dict[str, Any]:
    """The worst batch found within the time."""
    chance = np.random.default_rng(0)
    best: list[tuple[float, np.ndarray, dict[str, Any]]] = []
    tried, end, width = 0, time.monotonic() + seconds, 0.3
    while time.monotonic() < end:
        for _ in range(CHILDREN):
            if len(best) < PARENTS:
                point = chance.random(len(RANGES))
            else:
                parent = best[int(chance.integers(PARENTS))][1]
                point = np.clip(parent + width * chance.normal(size=len(RANGES)), 0.0, 1.0)
            found = measure(Traits.of(point), kind, dtype)
            tried += 1
            score = found["error"] / found["reported"] if goal == "ratio" else found["error"]
            if math.isfinite(score) and found["divergence"] >= MIN_DIVERGENCE:
                best.append((score, point, found))
        best = sorted(best, key=lambda one: -one[0])[:PARENTS]
        width = max(0.02, width * 0.93)
    score, point, found = best[0]
    return {
        "kind": kind, "dtype": str(dtype).removeprefix("torch."), "goal": goal, "score": score, "tried": tried, **found,
        "traits": {name: round(value, 4) for name, value in asdict(Traits.of(point)).items()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of all searches together")
    parser.add_argument("--json", type=Path, default=Path("build/bench-gpu/search_error.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("search_error: no CUDA device here; the fused form's error is measured on one")
    searches = [
        (kind, dtype, goal)
        for dtype in (torch.bfloat16, torch.float16)
        for kind in DIVERGENCE_KINDS
        for goal in ("ratio", "error")
    ]
    results = []
    for kind, dtype, goal in searches:
        results.append(search(kind, dtype, goal, arguments.seconds / len(searches)))
        print(json.dumps(results[-1]), flush=True)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(
        json.dumps({"environment": machine("torch", "triton"), "searches": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
