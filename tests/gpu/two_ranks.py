"""Two ranks on two GPUs against one, through the worker: data-, vocab- and sequence-parallel, tied and untied heads, fp32.

    python -m tests.gpu.two_ranks

Prints a line a case and ends with 1 where a gradient differs by more than 1e-5. `tests/training` runs the same on gloo.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.training.batches import uneven_rows
from tests.training.models import save_model
from tests.training.workers import Case, run_cases

LIMIT = 1e-5
MODES = {
    "data-parallel": [],
    "vocab-parallel": ["opd.vocab_parallel_size=2"],
    "sequence-parallel": ["actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"],
}


def worst_error(found: dict, expected: dict) -> tuple[float, str]:
    """The largest relative error of a parameter's gradient, and its name."""
    errors = {
        name: float((found["gradients"][name] - gradient).norm() / gradient.norm().clamp_min(1e-12))
        for name, gradient in expected["gradients"].items()
    }
    return max((error, name) for name, error in errors.items())


def main() -> int:
    """Run all cases; 0 if every gradient agrees."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = {}
        for tied in (False, True):
            student = save_model(Path(folder) / f"s{tied}", hidden=32, layers=2, rows=64, tied=tied, seed=1)
            teacher = save_model(Path(folder) / f"t{tied}", hidden=48, layers=3, rows=96, tied=tied, seed=2)
            pairs[tied] = {"student": student, "teacher": teacher, "rows": uneven_rows(), "device": "cuda"}
        alone = dict(zip(pairs, run_cases([Case(**pair) for pair in pairs.values()]), strict=True))
        names = [(mode, tied) for mode in MODES for tied in pairs]
        cases = [Case(**pairs[tied], micro_batch=2, overrides=MODES[mode]) for mode, tied in names]
        results = dict(zip(names, run_cases(cases, world=2), strict=True))
    worst = 0.0
    for (mode, tied), result in results.items():
        error, name = worst_error(result, alone[tied])
        worst = max(worst, error)
        loss = result["metrics"]["opd/loss"] / alone[tied]["metrics"]["opd/loss"] - 1
        print(
            f"{mode}, {'tied' if tied else 'untied'}: worst gradient {error:.1e} ({name}), loss {loss:+.1e}", flush=True
        )
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
