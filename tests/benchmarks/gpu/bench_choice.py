"""What the head costs where it trains on chosen tokens only, against all of them, on a CUDA device: a table and a JSON file.

The head's own code (`DivergenceTask`), one forward and backward of rollouts of 2,048 tokens. `random` and `position` choose before the
teacher's phase; the others score every token in the head (`normalize: micro`; `global` makes the same products).
"""

import argparse
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.gpu.bench_divergence import LARGE_GIB, SMALL_GIB, Shape
from tests.benchmarks.gpu.candidates import Batch
from tests.benchmarks.gpu.measure import Floor, peak_gib, round_robin
from tests.gpu.facts import machine
from torch import Tensor

from opd.config.algorithm import Score, TokenImportance
from opd.importance import choose_tokens
from opd.importance.micro import MicroBatchChoice
from opd.losses.storage import StorageMemory
from opd.worker.head import Choice, DivergenceTask
from opd.worker.teacher_cache import Fetch

ROLLOUT_TOKENS = 2048
NUM_TOKENS = (8192, 32768)  # of a micro-batch
RATIOS = (0.2, 0.5)
# Of the full head's time at ratio 0.2: scores that need no teacher to choose, and those that need both models' logits once.
BOUNDS: dict[Score, float] = {
    "random": 0.45, "position": 0.45, "entropy": 0.45, "divergence": 0.75, "soft_or": 0.75, "q3": 0.75
}  # fmt: skip


class Chosen:
    """The divergence of the tokens that a selection keeps, and its gradients."""

    def __init__(self, batch: Batch, selection: TokenImportance, workspace_gib: float, *, holds: bool = True) -> None:
        self.batch, self.selection, self.workspace_gib = batch, selection, workspace_gib
        self.memory = StorageMemory()
        self.positions = torch.arange(len(batch.student_hidden), device="cuda")
        rows = self.positions // ROLLOUT_TOKENS
        self.choose = functools.partial(choose_tokens, selection, rows, seed=0)
        # Made before the backbone's forward is queued, as the worker does: no part of the head's time.
        self.held = MicroBatchChoice(selection, rows, seed=0) if holds and selection.in_head else None

    def __call__(self) -> tuple[Tensor, Tensor]:
        batch, choice = self.batch, None
        batch.student_weight.grad_dtype = torch.float32
        hidden, weight, teacher_hidden, teacher_weight = batch.tensors
        positions = self.positions
        if self.selection.in_head:
            scored = "forward_kl" if self.selection.score == "q3" else "reverse_kl"
            choice = Choice(choose=self.choose, kind=scored if self.selection.needs_teacher else None, held=self.held)
        elif self.selection.score != "none":
            positions = self.choose().nonzero().squeeze(1)
            hidden, teacher_hidden = hidden[positions], teacher_hidden[positions]
        task = DivergenceTask(
            positions=positions,
            token_ids=positions,
            token_weights=torch.full((len(positions),), 1.0 / len(positions), device="cuda"),
            teacher_hidden=Fetch(teacher_hidden, None),
            teacher_weight=teacher_weight,
            kind="reverse_kl",
            beta=0.5,
            temperature=1.0,
            chunk_size=512,
            valid_vocab=batch.entries,
            workspace_gib=self.workspace_gib,
            choice=choice,
        )
        output = task.divergence(hidden, weight, self.memory.precision)
        self.memory.learn(output.precision)
        return batch.gradients(output.loss_sum)


def measured(
    batch: Batch,
    floor: Floor,
    flop: float,
    workspace_gib: float,
    rounds: int,
    ratios: Sequence[float],
    scores: list[Score],
) -> list[dict[str, Any]]:
    """A row for each score and ratio, times taken in turns with the full head's."""
    selections = {"full": TokenImportance()} | {
        f"{score} {ratio}": TokenImportance(score=score, ratio=ratio, normalize="micro")
        for ratio in ratios
        for score in scores
    }
    steps = {name: Chosen(batch, selection, workspace_gib) for name, selection in selections.items()}
    steps["soft_or 0.2, scored first"] = Chosen(batch, selections["soft_or 0.2"], workspace_gib, holds=False)
    memory = {name: peak_gib(step) for name, step in steps.items()}
    times, rate = round_robin(steps, floor, flop, rounds=rounds)
    rows = []
    for name, numbers in times.items():
        score, _, ratio = name.partition(" ")
        row = {
            "tokens": len(batch.student_hidden),
            "name": name,
            "workspace_gib": workspace_gib,
            **numbers,
            "peak_gib": memory[name],
            "floor_tflops": rate,
        }
        row["time_ratio"] = numbers["floor_ratio"] / times["full"]["floor_ratio"]
        row["memory_ratio"] = memory[name] / memory["full"]
        row["bound"] = BOUNDS[score] if ratio == "0.2" else None  # type: ignore[index]
        rows.append(row)
        shown = "" if row["bound"] is None else f"at most {row['bound']}"
        print(
            f"{row['tokens']:6d} tokens {workspace_gib:5.2f} GiB  {name:16s} {row['ms']:7.2f} ms  {row['time_ratio']:.3f}x  {row['peak_gib']:.2f} GiB"
            f"  {row['memory_ratio']:.3f}x  {shown}", flush=True
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ratios", type=lambda text: [float(r) for r in text.split(",")], default=RATIOS)
    parser.add_argument("--scores", type=lambda text: text.split(","), default=list(BOUNDS))
    parser.add_argument("--json", type=Path, default=Path("build/bench-gpu/choice.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench-gpu: no CUDA device here")
    facts, floor, largest = machine("torch", "triton", "cuda-bindings"), Floor(), Shape(tokens=max(NUM_TOKENS)).batch()
    print(facts, flush=True)
    rows = []
    for tokens in NUM_TOKENS:
        batch, flop = largest.head(tokens), Shape(tokens=tokens).flop
        for gib in (SMALL_GIB, LARGE_GIB):
            rows += measured(batch, floor, flop, gib, arguments.rounds, arguments.ratios, arguments.scores)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"environment": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
