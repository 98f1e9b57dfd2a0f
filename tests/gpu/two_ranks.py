"""Two ranks on two GPUs against one, through the worker, tied and untied heads: `python -m tests.gpu.two_ranks`.

In fp32 data- and sequence-parallel updates must have the gradients of one rank within 1e-5 (`tests/trainer`
runs the same on gloo). In bf16 sequences are shared through torch's flash attention and compiled layers. There they may be no
further from the fp32 gradients than one rank's own bf16 is. Prints a line a case; ends with 1 where one is not.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.update.models import VOCAB, save_model, uneven_rows
from tests.update.workers import Case, row, run_cases

ROLE = "actor_rollout_ref"
SHARED = [f"{ROLE}.actor.ulysses_sequence_parallel_size=2"]
LIMIT = 1e-5
MODES = {"data-parallel": [], "sequence-parallel": SHARED}

PACKED = [
    f"+{ROLE}.model.override_config.attn_implementation=varlen",
    "opd.teacher.dtype=bf16",
    "opd.max_length=256",
]
BF16 = ["actor.dtype=bf16"]
COMPILED = [f"{ROLE}.{role}.fsdp_config.use_torch_compile=True" for role in ("actor", "ref")]
CHECKPOINTED = [f"{ROLE}.model.enable_gradient_checkpointing=True"]
PACKED_MODES = {
    "one rank": [],
    "sequence-parallel": SHARED,
    "sequence-parallel, compiled": SHARED + COMPILED,
    "sequence-parallel, compiled, checkpointed": SHARED + COMPILED + CHECKPOINTED,
}
MAX_OF_ROUNDING = 1.5
"""A two-rank run sums in another order; a token that saw a wrong row or head would be off by tens of per cent."""

RESPONSE_LENGTHS = (5, 130, 1, 200, 64, 77, 128, 19)
"""The cut between two ranks falls inside rows, and rows are longer than a flash kernel's tile."""


def long_rows() -> list[dict[str, Any]]:
    """Rows for the packed attention, one of them with a span of tool tokens."""
    rng = random.Random(3)
    rows = []
    for i, length in enumerate(RESPONSE_LENGTHS):
        mask = [0 if i == 3 and 40 <= place < 90 else 1 for place in range(length)]
        prompt, response = ([rng.randrange(3, VOCAB) for _ in range(count)] for count in (4 + i, length))
        rows.append(row(prompt, response, mask, weight=0.5 + i / 8))
    return rows


def worst_error(found: dict, expected: dict) -> tuple[float, str]:
    """The largest relative error of a parameter's gradient, and its name."""
    errors = {
        name: float((found["gradients"][name] - gradient).norm() / gradient.norm().clamp_min(1e-12))
        for name, gradient in expected["gradients"].items()
    }
    return max((error, name) for name, error in errors.items())


def distance(found: dict, expected: dict) -> float:
    """The relative error of all gradients together."""
    pairs = [(found["gradients"][name], gradient) for name, gradient in expected["gradients"].items()]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(b.square().sum() for _, b in pairs)) ** 0.5


def exact_modes(folder: Path, device: str) -> bool:
    """fp32: every mode, tied and untied; True if all gradients agree."""
    pairs: dict[bool, dict[str, Any]] = {}
    for tied in (False, True):
        student = save_model(folder / f"s{tied}", hidden=32, layers=2, rows=64, tied=tied, seed=1)
        teacher = save_model(folder / f"t{tied}", hidden=48, layers=3, rows=96, tied=tied, seed=2)
        pairs[tied] = {"student": student, "teacher": teacher, "rows": uneven_rows(), "device": device}
    alone = dict(zip(pairs, run_cases([Case(**pair) for pair in pairs.values()]), strict=True))
    names = [(mode, tied) for mode in MODES for tied in pairs]
    cases = [Case(**pairs[tied], micro_batch=2, overrides=MODES[mode]) for mode, tied in names]
    worst = 0.0
    for (mode, tied), result in zip(names, run_cases(cases, world=2), strict=True):
        if "error" in result:
            raise SystemExit(f"{mode}: {result['error']}")
        error, name = worst_error(result, alone[tied])
        worst = max(worst, error)
        loss = result["metrics"]["opd/loss"] / alone[tied]["metrics"]["opd/loss"] - 1
        heads = "tied" if tied else "untied"
        print(f"fp32, {mode}, {heads}: worst gradient {error:.1e} ({name}), loss {loss:+.1e}", flush=True)
    return worst <= LIMIT


def packed_modes(folder: Path) -> bool:
    """bf16 over packed rows; True if no mode is further from fp32 than one rank's rounding allows."""
    student = save_model(folder / "s", hidden=64, layers=3, rows=64, tied=False, seed=3)
    teacher = save_model(folder / "t", hidden=96, layers=3, rows=64, tied=False, seed=4)
    pair: dict[str, Any] = {"student": student, "teacher": teacher, "rows": long_rows(), "device": "cuda"}
    exact, *rounded = run_cases(
        [Case(**pair, overrides=["opd.max_length=256"]), Case(**pair, micro_batch=4, overrides=PACKED, sets=BF16)]
    )
    shared = {name: overrides for name, overrides in PACKED_MODES.items() if overrides}
    cases = [Case(**pair, micro_batch=4, overrides=PACKED + overrides, sets=BF16) for overrides in shared.values()]
    results = dict(zip(PACKED_MODES, rounded + run_cases(cases, world=2), strict=True))
    distances = {}
    for name, result in results.items():
        if "error" in result:
            raise SystemExit(f"{name}: {result['error']}")
        distances[name] = distance(result, exact)
        loss = result["metrics"]["opd/loss"] / exact["metrics"]["opd/loss"] - 1
        print(f"bf16 varlen, {name}: gradients {distances[name]:.1e} from fp32, loss {loss:+.1e}", flush=True)
    return all(found <= MAX_OF_ROUNDING * distances["one rank"] for found in distances.values())


def main() -> int:
    """Run all cases; 0 if every gradient agrees."""
    with tempfile.TemporaryDirectory() as folder:
        agree = [exact_modes(Path(folder), "cuda"), packed_modes(Path(folder))]
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
