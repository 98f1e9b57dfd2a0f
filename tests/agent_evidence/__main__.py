"""`make agent-evidence`: distils the tiny student in each seed's episodes and measures it with, and without, what tools say."""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.agent_evidence.play import play
from tests.agent_evidence.settings import settings

from opd.quickstart.__main__ import convert_student
from opd_envs.travel.toy import MODELS, STUDENT, TEACHER, heldout_rows, open_world

SPEC = "manifests/experiments/opd-agent-quickstart.yaml"
MIN_TEACHER, MIN_GAIN, MAX_BLANKED = 0.8, 0.2, 0.05
"""What must be shown. A price lies in a range of at least 190: who guesses is right once in some hundred times."""
_ROWS = {
    "score_before": "student before",
    "score_after": "student after",
    "score_teacher": "teacher",
    "score_blanked": "student after, replies emptied",
}


def main() -> int:
    """Run every seed, then print the table; 1 if the evidence falls short."""
    parser = argparse.ArgumentParser(prog="python -m tests.agent_evidence", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="default: 1 to 5")
    parser.add_argument("--out", type=Path, default=Path("build/agent"), help="folder, emptied first")
    args = parser.parse_args()
    started = time.monotonic()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    scores = []
    for seed in args.seeds:
        print(f"seed {seed}", flush=True)
        if (returncode := train(args.out, seed)) != 0:
            print(f"seed {seed}: the run failed", file=sys.stderr)
            return returncode
        scores.append(measure(args.out, seed))
    result: dict[str, Any] = {key: [one[key] for one in scores] for key in _ROWS} | {"seeds": args.seeds}
    result["wall_seconds"] = time.monotonic() - started
    (args.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    return report(result)


def train(out: Path, seed: int) -> int:
    """One run of `opd.launch`, as `make run` starts it; its exit code."""
    words = [sys.executable, "-m", "opd.launch", SPEC, "--name", f"seed-{seed}", "--seed", str(seed)]
    # The models are measured once, by plain greedy conversations, when the run is over.
    sets = (
        f"output.root={out}",
        f"store.url={out / 'store'}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
    )
    for item in sets:
        words += ["--set", item]
    return subprocess.run(words, check=False).returncode


def measure(out: Path, seed: int) -> dict[str, float]:
    """Greedy scores of all models on the seed's held-out episodes."""
    run = out / f"seed-{seed}"
    trained = convert_student(run, run / "model")
    database = run / "data" / "database"
    heldout = heldout_rows(open_world(database), seed=seed)

    def score(folder: Path, *, blank_replies: bool = False) -> float:
        played = play(folder, heldout, settings(database), blank_replies=blank_replies)
        return statistics.fmean(one.score for one in played)

    return {
        "score_before": score(MODELS[STUDENT]),
        "score_after": score(trained),
        "score_teacher": score(MODELS[TEACHER]),
        "score_blanked": score(trained, blank_replies=True),
    }


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error over seeds; the error is nan for a single one."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def report(result: dict[str, Any]) -> int:
    """Print the table and whether each promise is kept; the exit code."""
    console = Console()
    table = Table(title="right answers on held-out episodes, greedy")
    for column in ("", *(f"seed {seed}" for seed in result["seeds"]), "mean ± s.e."):
        table.add_column(column)
    gains = [after - before for before, after in zip(result["score_before"], result["score_after"], strict=True)]
    for label, values in [*((label, result[key]) for key, label in _ROWS.items()), ("after - before, paired", gains)]:
        mean, error = mean_and_error(values)
        table.add_row(label, *(f"{value:.3f}" for value in values), f"{mean:.3f} ± {error:.3f}")
    console.print(table)
    promises = {
        f"teacher >= {MIN_TEACHER}": statistics.fmean(result["score_teacher"]) >= MIN_TEACHER,
        f"after - before >= {MIN_GAIN}": statistics.fmean(gains) >= MIN_GAIN,
        f"replies emptied <= {MAX_BLANKED}": statistics.fmean(result["score_blanked"]) <= MAX_BLANKED,
    }
    for promise, kept in promises.items():
        console.print(f"{'kept' if kept else 'BROKEN'}: {promise}")
    return 0 if all(promises.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
