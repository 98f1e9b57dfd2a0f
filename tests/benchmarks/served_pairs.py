"""`python -m tests.benchmarks.served_pairs`: the toy task from a served teacher and from the same teacher in the ranks, seed by seed.

The server is `tests.teacher_server` with the forward of the CPU's rollout server. Both runs of a pair have one seed: the same
prompts in the same order, and the same seed of each request. The table ends with the mean difference and its standard error.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e_cpu.runs import Outcome, finish, start
from tests.teacher_server import serving

from opd.data.toy import TEACHER_DIR

# The quickstart's, but for the number of steps.
SETS = (
    "data.train_batch_size=128", "data.max_val_samples=null", "actor.ppo_mini_batch_size=128",
    "actor.ppo_micro_batch_size_per_gpu=128", "actor.learning_rate=4e-4", "actor.num_warmup_steps=10", "actor.betas=[0.9,0.98]",
)  # fmt: skip
TIMEOUT_S = 1800.0  # of a run, also on a machine that does other work
LAST = 5  # steps whose divergence is averaged


def pair(folder: Path, *sets: str, top_k: int, in_ranks: Sequence[str] = ()) -> Iterator[Outcome]:
    """Yield a run from a served teacher, then one from the same teacher in the ranks, with further settings."""
    with serving(str(TEACHER_DIR)) as keys:
        served = [f"teacher.{key}" for key in (*keys, f"top_k={top_k}")]
        yield _run(folder / "served", *sets, *served)
    yield _run(folder / "ranks", *sets, *in_ranks)


def _run(folder: Path, *sets: str) -> Outcome:
    return finish(start(folder, "opd", *sets), folder, "opd", timeout_s=TIMEOUT_S).must_be_clean()


def numbers(outcome: Outcome) -> tuple[float, float, float]:
    """Return the held-out accuracy in percent, the mean divergence of the last steps, and the seconds of a step."""
    last = outcome.steps[-LAST:]
    of_steps = [[float(row[key]) for row in last] for key in ("opd/divergence", "timing_s/step")]
    return 100 * outcome.accuracy()[-1], statistics.mean(of_steps[0]), statistics.median(of_steps[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.served_pairs", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--top-k", type=int, default=16)
    parser.add_argument("--loss", default="reverse_kl")
    args = parser.parse_args()
    names = ("accuracy %", "divergence", "s a step")
    print("| seed |" + "".join(f" {name}: served | ranks | difference |" for name in names))
    print("| --- |" + " ---: |" * 9)
    found = list[list[float]]()
    for seed in range(1, args.pairs + 1):
        steps = (f"trainer.total_steps={args.steps}", f"trainer.test_freq={args.steps}", f"opd.loss_type={args.loss}")
        with tempfile.TemporaryDirectory() as folder:
            sides = [numbers(each) for each in pair(Path(folder), f"seed={seed}", *SETS, *steps, top_k=args.top_k)]
        cells = [(served, ranks, served - ranks) for served, ranks in zip(*sides, strict=True)]
        found.append([cell[-1] for cell in cells])
        print(f"| {seed} |" + "".join(f" {a:.4g} | {b:.4g} | {c:+.3g} |" for a, b, c in cells), flush=True)
    for name, values in zip(names, zip(*found, strict=True), strict=True):
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        print(
            f"{name}: served less ranks {statistics.mean(values):+.3g}, standard error {error:.3g}, {len(values)} pairs"
        )


if __name__ == "__main__":
    main()
