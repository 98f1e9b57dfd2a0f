"""Time, memory and gradient error of `head_loss` on a CUDA device: a table and a JSON file.

The floor of a row is the time of its matrix products: the teacher's logits, the student's logits and two gradients. Their
rate is measured by a bf16 product of 8192^3 in the same rounds. Peak is beyond inputs and both gradients. Errors are of both
gradients against float64. Needs torch, triton and cuda.bindings only:

    PYTHONPATH=src:. python -m tests.benchmarks.gpu.bench_head
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.gpu.measure import Floor, against_floor, peak_gib, products_flop, relative_errors
from tests.gpu.facts import machine, write_record
from tests.losses.cases import clipped
from torch import Tensor

from opd.losses import HiddenTargets, Loss, Weights, head_loss, token_log_probs

TOKENS, STUDENT, TEACHER = 8192, 2048, 4096
# The tokenizer's entries, and rows of the two heads.
VOCABULARIES = {
    "Qwen3": (151_669, 151_936),
    "Llama 3": (128_256, 128_256),
    "SmolLM2": (49_152, 49_152),
    "Gemma 3": (262_144, 262_208),
}
GIB = {"small": 2.6, "large": 4.1, "fused": 1.3}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table.

    Args:
        has_teacher: False for a policy gradient, or a likelihood, alone.
        two_passes: read log p first, then give the slopes of the policy loss.
    """

    name: str
    loss: Loss
    backend: Any = "compiled"
    size: str = "small"
    terms: tuple[str, ...] = ("divergence",)
    has_teacher: bool = True
    two_passes: bool = False
    watch: tuple[str, ...] = ("entropy", "teacher_entropy")


class Batch:
    """Random hidden states and heads whose logits have a standard deviation of 2."""

    def __init__(self, entries: int, rows: int) -> None:
        torch.manual_seed(0)
        self.entries = entries

        def draw(count: int, width: int, scale: float) -> Tensor:
            return (torch.randn(count, width, device="cuda") * scale).bfloat16()

        self.hidden = draw(TOKENS, STUDENT, 1.0).requires_grad_()
        self.weight = draw(rows, STUDENT, 2.0 / math.sqrt(STUDENT)).requires_grad_()
        self.weight.grad_dtype = torch.float32
        self.targets = HiddenTargets(draw(TOKENS, TEACHER, 1.0), draw(rows, TEACHER, 2.0 / math.sqrt(TEACHER)))
        self.ids = torch.randint(0, entries, (TOKENS,), device="cuda")
        self.weights = torch.rand(TOKENS, device="cuda")
        self.advantages = torch.randn(TOKENS, device="cuda")
        with torch.no_grad():
            noise = 0.2 * torch.randn(TOKENS, device="cuda")
            self.old = token_log_probs(self.hidden, self.weight, self.ids, valid_vocab=entries, backend="plain") + noise

    def loss_of(self, case: Case, hidden: Tensor, weight: Tensor, targets: HiddenTargets, **options: Any) -> Tensor:
        """Return the loss of a case."""
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        weights, slopes = {name: self.weights.to(dtype) for name in case.terms}, None
        common = {"valid_vocab": self.entries, **options}
        if case.two_passes:
            log_p = token_log_probs(hidden, weight, self.ids, **common).requires_grad_()
            with torch.enable_grad():
                policy = (weights["policy"] * clipped(log_p, self.old, self.advantages)).sum()
                (slopes,) = torch.autograd.grad(policy, log_p)
            del weights["policy"]
        has_policy = "policy" in weights
        output = head_loss(
            hidden,
            weight,
            self.ids,
            Weights(**weights),
            case.loss,
            targets=targets if case.has_teacher else None,
            advantages=self.advantages if has_policy else None,
            old_log_probs=self.old if has_policy else None,
            slopes=slopes,
            watch=case.watch,
            **common,
        )
        return output.loss

    def step(self, case: Case) -> Callable[[], tuple[Tensor, Tensor]]:
        """Return a function that runs a forward and a backward and returns both gradients."""

        def run() -> tuple[Tensor, Tensor]:
            options = {"backend": case.backend, "workspace_gib": GIB[case.size]}
            self.loss_of(case, self.hidden, self.weight, self.targets, **options).backward()
            taken = self.hidden.grad, self.weight.grad
            self.hidden.grad = self.weight.grad = None
            assert taken[0] is not None
            assert taken[1] is not None
            return taken[0], taken[1]

        return run

    def exact(self, case: Case) -> tuple[Tensor, Tensor]:
        """Return both gradients in float64."""
        hidden, weight = (each.detach().double().requires_grad_() for each in (self.hidden, self.weight))
        targets = HiddenTargets(*(each.double() for each in self.targets))
        self.loss_of(case, hidden, weight, targets, backend="plain", chunk=512).backward()
        assert hidden.grad is not None
        assert weight.grad is not None
        return hidden.grad, weight.grad


def cases(is_main: bool) -> list[Case]:
    """Return the rows of one vocabulary; the main one has more."""
    kl, policy = Loss("reverse_kl"), Loss("reverse_kl", policy=clipped)
    top = Loss("topk_reverse_kl", {"top_k": 64})
    rows = [
        Case(name="reverse_kl", loss=kl),
        Case(name="reverse_kl", loss=kl, size="large"),
        Case(name="reverse_kl + policy", loss=policy, terms=("divergence", "policy")),
        Case(name="top 64", loss=top, watch=("entropy",)),
        Case(name="two passes", loss=kl, terms=("divergence", "policy"), two_passes=True),
    ]
    if not is_main:
        return rows
    fused = [Case(name=kind, loss=loss, backend="fused", size="fused") for kind, loss in EXACT.items()]
    alone = {"has_teacher": False, "watch": ("entropy",)}
    return [
        *fused,
        *rows,
        Case(name="forward_kl", loss=EXACT["forward_kl"]),
        Case(name="jsd", loss=EXACT["jsd"]),
        Case(name="policy alone", loss=policy, terms=("policy",), **alone),  # type: ignore[arg-type]
        Case(name="policy and entropy", loss=policy, terms=("policy", "entropy"), **alone),  # type: ignore[arg-type]
        Case(name="likelihood alone", loss=kl, terms=("nll",), has_teacher=False, watch=()),
    ]


EXACT = {"reverse_kl": Loss("reverse_kl"), "forward_kl": Loss("forward_kl"), "jsd": Loss("jsd", {"beta": 0.5})}


def measure(batch: Batch, case: Case, floor: Floor, rounds: int, with_errors: bool) -> dict[str, Any]:
    """Return the numbers of one row."""
    step = batch.step(case)
    began = time.monotonic()
    step()
    torch.cuda.synchronize()
    numbers: dict[str, Any] = {"first_s": time.monotonic() - began, "peak_gib": peak_gib(step)}
    if with_errors:
        errors = relative_errors(step, batch.exact(case))
        numbers |= {"error_hidden": errors[0], "error_weight": errors[1]}
        torch.cuda.empty_cache()
    flop = products_flop(TOKENS, batch.entries, STUDENT, TEACHER if case.has_teacher else 0)
    return numbers | against_floor(step, floor, flop, rounds=rounds)


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", default=",".join(VOCABULARIES), help="comma-separated names")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-errors", action="store_true")
    parser.add_argument("--json", type=Path, default=Path("build/bench-gpu/head.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_head: no CUDA device here; this benchmark measures a GPU")
    facts, floor, table = machine("torch", "triton", "cuda-bindings"), Floor(), []
    print(facts, flush=True)
    began = time.monotonic()
    for place, name in enumerate(arguments.vocabularies.split(",")):
        batch = Batch(*VOCABULARIES[name])
        for case in cases(is_main=place == 0):
            if arguments.only not in case.name:
                continue
            row: dict[str, Any] = {
                "vocabulary": name,
                "case": case.name,
                "backend": case.backend,
                "gib": GIB[case.size],
            }
            try:
                row |= measure(batch, case, floor, arguments.rounds, not arguments.no_errors)
            except Exception as error:  # noqa: BLE001  a row that fails must not cost the others
                row["failed"] = f"{type(error).__name__}: {error}"[:2000]
                batch.hidden.grad = batch.weight.grad = None
            table.append(row)
            print(shown(row), f"at {time.monotonic() - began:.0f} s", flush=True)
            write_record(arguments.json, {"environment": facts, "rows": table})
        del batch
        torch.cuda.empty_cache()


def shown(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    start = f"{row['vocabulary']:9s} {row['case']:20s} {row['backend']:9s} {row['gib']:.2f} GiB "
    if "failed" in row:
        return start + "FAILED " + row["failed"]
    errors = f"dH {row['error_hidden']:.1e} dW {row['error_weight']:.1e}  " if "error_hidden" in row else ""
    spread = f"({row['floor_ratio_min']:.3f} to {row['floor_ratio_max']:.3f})"
    numbers = f"{row['floor_ratio']:.3f}x {spread} {row['ms']:.1f} ms  peak {row['peak_gib']:.2f} GiB  "
    return start + numbers + errors + f"first {row['first_s']:.1f} s"


if __name__ == "__main__":
    main()
