"""Command line of the quickstart: distil, measure, write `result.json`, the table and the learning curve."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from opd.data.toy import TEACHER_DIR
from opd.quickstart.watch import save_learning_curve, watch

VALIDATION_KEY = "val-core/toy_add/acc/mean@1"
RUN_NAME = "quickstart"
LOG_FILE = "run.log"
_LABELS = {
    "before": "student before",
    "after": "student after",
    "model": "  as converted folder",
    "teacher": "teacher",
}


def main(argv: list[str] | None = None) -> int:
    """Run the experiment in a fresh folder; return the exit code."""
    started = time.time()
    os.environ["TQDM_DISABLE"] = "1"  # transformers draws a bar over every folder it loads
    args = _arguments(argv)
    out = Path(args.out)
    if out.exists() and any(out.iterdir()) and not (out / LOG_FILE).exists():
        print(f"--out {out}: a folder of something else; name one that is new, or a quickstart's", file=sys.stderr)
        return 2
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    log = out / LOG_FILE
    print(f"distilling on-policy: {args.spec}, seed {args.seed}; everything else is in {log}\n", flush=True)
    command = [sys.executable, "-m", "opd.launch", args.spec, "--seed", str(args.seed), "--name", RUN_NAME]
    command += ["--set", f"output.root={out}", "--set", f"store.url={out / 'store'}"]
    for setting in args.set:
        command += ["--set", setting]
    try:
        returncode = watch(command, log)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    if returncode != 0:
        print(f"\nthe run ended with exit code {returncode}; last lines of {log}:", file=sys.stderr)
        print("".join(log.read_text().splitlines(keepends=True)[-25:]), file=sys.stderr)
        return returncode
    report(out, args.seed, started)
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m opd.quickstart",
        description=__doc__,
        epilog="example: python -m opd.quickstart --seed 7",
    )
    parser.add_argument("--spec", default="manifests/experiments/quickstart.yaml", help="experiment file")
    parser.add_argument("--seed", type=int, default=1, help="decides data order and sampling (default: 1)")
    parser.add_argument("--out", default="build/quickstart", help="folder, emptied first (default: build/quickstart)")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="set a key of the spec")
    return parser.parse_args(argv)


def report(out: Path, seed: int, started: float) -> dict[str, Any]:
    """Write `heldout.parquet`, `result.json` and `learning_curve.png` of a finished run and print the table."""
    from opd.runs.metrics import read_metrics
    from opd.store.local import LocalStore

    run_dir = out / RUN_NAME
    rows = read_metrics([LocalStore(run_dir)])
    shutil.copy(run_dir / "data" / "heldout.parquet", out / "heldout.parquet")
    model = convert_student(run_dir, out / "model")
    accuracies, num_problems = folder_accuracies({"model": model, "teacher": TEACHER_DIR})
    teacher = accuracies["teacher"]
    held = [row for row in rows if VALIDATION_KEY in row]
    trained = [row for row in rows if "opd/loss" in row]
    result = {
        "accuracy_before": held[0][VALIDATION_KEY],
        "accuracy_after": held[-1][VALIDATION_KEY],
        "accuracy_model": accuracies["model"],
        "accuracy_teacher": teacher,
        "num_heldout": num_problems,
        "steps": len(trained),
        "startup_seconds": trained[0]["time"] - trained[0]["timing_s/step"] - started,
        "train_seconds": trained[-1]["time"] - trained[0]["time"] + trained[0]["timing_s/step"],
        "seed": seed,
    }
    picture = out / "learning_curve.png"
    title = f"On-policy distillation, seed {seed}: {result['accuracy_before']:.0%} to {result['accuracy_after']:.0%} held-out"
    save_learning_curve(picture, rows, validation_key=VALIDATION_KEY, teacher_accuracy=teacher, title=title)
    result["wall_seconds"] = time.time() - started
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print_table(result, picture)
    return result


def convert_student(run_dir: Path, target: Path) -> Path:
    """Convert the student's newest checkpoint to a Hugging Face folder, and compare both."""
    from opd.convert.pipeline import convert_checkpoint
    from opd.experiment.algorithm import Convert

    newest = max((run_dir / "checkpoints").glob("global_step_*"), key=lambda folder: int(folder.name.split("_")[-1]))
    convert_checkpoint(Convert(checkpoint=str(newest), target=str(target)))
    return target


def folder_accuracies(folders: dict[str, Path]) -> tuple[dict[str, float], int]:
    """Return the greedy accuracy of each Hugging Face folder on all held-out problems, by plain transformers, and their number."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from opd.data.toy.evaluate import greedy_accuracy
    from opd.data.toy.task import split_problems

    problems = split_problems().heldout
    accuracies = {}
    for name, folder in folders.items():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        accuracies[name] = greedy_accuracy(model, AutoTokenizer.from_pretrained(folder), problems)
    return accuracies, len(problems)


def print_table(result: dict[str, Any], picture: Path) -> None:
    """Print accuracies with binomial standard errors, then the times."""
    table = Table()
    table.add_column("model")
    table.add_column("held-out accuracy", justify="right")
    table.add_column("± s.e.", justify="right")
    for name, label in _LABELS.items():
        accuracy = result[f"accuracy_{name}"]
        error = math.sqrt(accuracy * (1 - accuracy) / result["num_heldout"])
        table.add_row(label, f"{accuracy:.3f}", f"{error:.3f}")
    console = Console()
    console.print()
    console.print(table)
    console.print(f"greedy answers to {result['num_heldout']} problems that no model was trained on")
    console.print(
        f"{result['steps']} steps; start-up {result['startup_seconds']:.0f} s, training {result['train_seconds']:.0f} s, "
        f"in all {result['wall_seconds']:.0f} s"
    )
    console.print(f"learning curve: {picture}\nmodel: {picture.parent / 'model'}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
