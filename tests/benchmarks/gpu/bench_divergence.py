"""Time, memory and error of the head divergence on a CUDA device: a table and a JSON file (`make bench-gpu`).

Floor: 2 N V (d_T + 3 d_S) FLOP at the rate of an 8192^3 bf16 `torch.mm` that takes turns with the candidates.
Memory: peak beyond both gradients, heads and hidden states. Error: of both gradients against float64.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.gpu.candidates import BASELINES, LIGER_CHUNKED, Batch, Ours, exact_gradients
from tests.benchmarks.gpu.measure import Floor, Step, peak_gib, products_flop, relative_errors, round_robin
from tests.gpu.facts import machine, write_record

from opd.losses.divergence import DIVERGENCE_KINDS

SMALL_GIB, LARGE_GIB = 1.15, 2.34
SLOW = ("original", "naive", "plain chunked (fp32 products)", "Liger fused_linear_jsd")
OTHER_WIDTHS = ((1024, 2560), (1024, 4096), (1536, 3584), (2560, 4096), (2048, 5120), (4096, 4096))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Qwen3-8B to 1.7B: the entries of its tokenizer, the rows of its heads, student before teacher."""

    tokens: int = 8192
    entries: int = 151_669
    head_rows: tuple[int, int] = (151_936, 151_936)
    widths: tuple[int, int] = (2048, 4096)

    def batch(self, *, peaked: bool = False, dtype: torch.dtype = torch.bfloat16) -> Batch:
        return Batch.random(self.tokens, self.entries, self.head_rows, self.widths, peaked=peaked, dtype=dtype)

    @property
    def flop(self) -> float:
        return products_flop(self.tokens, self.entries, *self.widths)


# Models that people distil, and counts that are hard: the widths are the models', and Qwen3-8B to 1.7B's for the last three.
TOKENIZERS = {
    "Qwen3 8B to 1.7B": Shape(),
    "Qwen3 8B to 4B": Shape(widths=(2560, 4096)),
    "Qwen2.5 7B to 1.5B": Shape(entries=151_665, head_rows=(151_936, 152_064), widths=(1536, 3584)),
    "Llama 3 8B to 3B": Shape(entries=128_256, head_rows=(128_256, 128_256), widths=(3072, 4096)),
    "262,144 of 262,208": Shape(entries=262_144, head_rows=(262_208, 262_208)),
    "131,071, a prime, unpadded": Shape(entries=131_071, head_rows=(131_071, 131_071)),
    "50,257, unpadded (GPT-2)": Shape(entries=50_257, head_rows=(50_257, 50_257)),
}


class Report:
    """Rows of the table, printed as they are measured."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, section: str, name: str, **numbers: Any) -> None:
        self.rows.append({"section": section, "name": name, **numbers})
        shown = {
            "ms": "{:.1f} ms", "floor_ratio": "{:.3f}x", "after_idle": "{:.3f}x idle", "peak_gib": "{:.2f} GiB",
            "error_hidden": "dH {:.1e}", "error_weight": "dW {:.1e}", "logits": "{} logits",
        }  # fmt: skip
        cells = [text.format(numbers[key]) for key, text in shown.items() if numbers.get(key) is not None]
        print(f"{section:34s} {name:40s} " + "  ".join(f"{cell:>12s}" for cell in cells), flush=True)


def measured(
    report: Report, section: str, steps: dict[str, Step], floor: Floor, flop: float, rounds: int,
    exact: tuple[torch.Tensor, torch.Tensor] | None = None, idle: bool = False,
) -> None:  # fmt: skip
    """One section: memory and error first, then times in turns; slow candidates take few turns."""
    facts: dict[str, dict[str, Any]] = {}
    for name, step in steps.items():
        step()
        facts[name] = {"peak_gib": peak_gib(step)}
        if exact is not None:
            errors = relative_errors(step, exact)
            facts[name] |= {"error_hidden": errors[0], "error_weight": errors[1]}
        facts[name] |= step.facts if isinstance(step, Ours) else {}
    fast = {name: step for name, step in steps.items() if not name.startswith(SLOW)}
    slow = {name: step for name, step in steps.items() if name.startswith(SLOW)}
    for group, turns in ((fast, rounds), (slow, 3)):
        if not group:
            continue
        times, rate = round_robin(group, floor, flop, rounds=turns)
        rested = (
            round_robin(group, floor, flop, rounds=max(3, rounds // 2), idle_s=0.2)[0] if idle and group is fast else {}
        )
        for name, numbers in times.items():
            after_idle = rested[name]["floor_ratio"] if rested else None
            report.add(section, name, **numbers, **facts[name], after_idle=after_idle, floor_tflops=rate)


def main_sections(report: Report, floor: Floor, rounds: int, chosen: set[str]) -> None:
    for peaked in (False, True):
        section = "peaked logits" if peaked else "standard deviation 2"
        if ("peaked" if peaked else "main") not in chosen:
            continue
        shape = Shape()
        for dtype in (torch.bfloat16, torch.float16):
            batch = shape.batch(peaked=peaked, dtype=dtype)
            name = str(dtype).removeprefix("torch.")
            exact = exact_gradients(batch, "reverse_kl")
            steps = {
                f"ours, {name} heads, {SMALL_GIB} GiB": Ours(batch, "reverse_kl", SMALL_GIB),
                f"ours, {name} heads, {LARGE_GIB} GiB": Ours(batch, "reverse_kl", LARGE_GIB),
                f"ours, {name} heads, fp32 logits, {LARGE_GIB} GiB": Ours(batch, "reverse_kl", LARGE_GIB, "fp32"),
            }
            if dtype == torch.bfloat16 and "baselines" in chosen:
                labels = [label for label in BASELINES if not peaked or label.startswith("Liger")]
                steps |= {label: BASELINES[label](batch, "reverse_kl") for label in labels}
            measured(report, section, steps, floor, shape.flop, rounds, exact, idle=True)
            del batch, exact, steps


def kinds_section(report: Report, floor: Floor, rounds: int) -> None:
    shape = Shape()
    for peaked in (False, True):
        batch = shape.batch(peaked=peaked)
        for kind in DIVERGENCE_KINDS:
            steps = {f"{kind}, {gib} GiB": Ours(batch, kind, gib) for gib in (SMALL_GIB, LARGE_GIB)}
            section = "divergences, peaked" if peaked else "divergences"
            measured(report, section, steps, floor, shape.flop, rounds, exact_gradients(batch, kind))


def tokens_section(report: Report, floor: Floor, rounds: int, baselines: bool) -> None:
    largest = Shape(tokens=65536).batch()
    for tokens in (511, 1024, 8192, 32768, 65536):
        batch, shape = largest.head(tokens), Shape(tokens=tokens)
        steps = {f"ours, {gib} GiB": Ours(batch, "reverse_kl", gib) for gib in (SMALL_GIB, LARGE_GIB)}
        if baselines and LIGER_CHUNKED in BASELINES:
            steps[LIGER_CHUNKED] = BASELINES[LIGER_CHUNKED](batch, "reverse_kl")
        measured(report, f"{tokens} tokens", steps, floor, shape.flop, max(3, rounds * 8192 // max(tokens, 8192)))


def shapes_section(report: Report, floor: Floor, rounds: int, baselines: bool) -> None:
    for widths in OTHER_WIDTHS:
        shape = Shape(widths=widths)
        batch = shape.batch()
        steps = {f"ours, {gib} GiB": Ours(batch, "reverse_kl", gib) for gib in (SMALL_GIB, LARGE_GIB)}
        if baselines and LIGER_CHUNKED in BASELINES:
            steps[LIGER_CHUNKED] = BASELINES[LIGER_CHUNKED](batch, "reverse_kl")
        section = f"d_T {widths[1]} d_S {widths[0]}"
        measured(report, section, steps, floor, shape.flop, rounds, exact_gradients(batch, "reverse_kl"))


def tokenizers_section(report: Report, floor: Floor, rounds: int) -> None:
    for name, shape in TOKENIZERS.items():
        batch = shape.batch()
        steps = {f"{name}, {gib} GiB": Ours(batch, "reverse_kl", gib) for gib in (SMALL_GIB, LARGE_GIB)}
        counts = f"{shape.entries:,} of {shape.head_rows[0]:,}"
        exact = exact_gradients(batch, "reverse_kl")
        measured(report, counts, steps, floor, shape.flop, rounds, exact, idle=True)
        del batch, steps, exact


def near_section(report: Report, floor: Floor, rounds: int) -> None:
    """A student near its teacher needs fp32 logits: calls that remember it, and one that tries fp16 first."""
    shape = Shape()
    batch = Batch.near(shape.tokens, shape.entries, shape.head_rows, shape.widths)
    for kind in DIVERGENCE_KINDS:
        steps = {f"{kind}, {gib} GiB": Ours(batch, kind, gib) for gib in (SMALL_GIB, LARGE_GIB)}
        steps[f"{kind}, {SMALL_GIB} GiB, the first call"] = Ours(batch, kind, SMALL_GIB, "fp16")
        measured(report, "near its teacher", steps, floor, shape.flop, rounds, exact_gradients(batch, kind))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sections", default="tokenizers,main,peaked,kinds,near,tokens,shapes,baselines", help="comma-separated"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, default=Path("build/bench-gpu/divergence.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(
            "bench-gpu: no CUDA device here; this benchmark measures a GPU and has nothing to report without one"
        )
    chosen = set(arguments.sections.split(","))
    report, floor = Report(), Floor()
    facts = machine("torch", "triton", "liger-kernel", "cuda-bindings")
    print(facts, flush=True)
    if "tokenizers" in chosen:
        tokenizers_section(report, floor, arguments.rounds)
    main_sections(report, floor, arguments.rounds, chosen)
    if "kinds" in chosen:
        kinds_section(report, floor, arguments.rounds)
    if "near" in chosen:
        near_section(report, floor, arguments.rounds)
    if "tokens" in chosen:
        tokens_section(report, floor, arguments.rounds, "baselines" in chosen)
    if "shapes" in chosen:
        shapes_section(report, floor, arguments.rounds, "baselines" in chosen)
    write_record(arguments.json, {"environment": facts, "rows": report.rows})


if __name__ == "__main__":
    main()
