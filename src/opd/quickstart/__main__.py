"""Command line of the quickstarts: distil, measure, write `result.json`, the table and the learning curve."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from opd import launch
from opd.experiment.algorithm import Convert
from opd.quickstart import language, toy
from opd.quickstart.report import Report, print_report, save_learning_curve
from opd.runs.manifest import saved_steps, step_folder
from opd.runs.metrics import read_metrics
from opd.store.local import LocalStore

RUN_NAME = "quickstart"


TASKS: dict[str, ModuleType] = {"toy": toy, "lm": language}
"""Modules with `SPEC` (an experiment of this folder), `OUT`, `prepare` and `measure`."""


def main(argv: list[str] | None = None) -> int:
    """Run the experiment in a fresh folder; return the exit code."""
    started, this = time.time(), os.getpid()
    os.environ["TQDM_DISABLE"] = "1"  # transformers draws a bar over every folder it loads
    args = _arguments(argv)
    task = TASKS[args.task]
    spec, out = Path(__file__).parent / task.SPEC, Path(args.out or task.OUT)
    if out.exists() and any(out.iterdir()) and not (out / RUN_NAME).exists():
        print(f"--out {out}: a folder of something else; name one that is new, or a quickstart's", file=sys.stderr)
        return 2
    shutil.rmtree(out, ignore_errors=True)
    (out / RUN_NAME).mkdir(parents=True)  # the mark of a quickstart's folder
    try:
        settings: list[str] = task.prepare(out)
    except subprocess.CalledProcessError as error:
        return error.returncode
    print(f"distilling on-policy: {spec.name}, seed {args.seed}\n", flush=True)
    words = [str(spec), "--seed", str(args.seed), "--name", RUN_NAME]
    for setting in (f"output.root={out}", f"store.url={out / 'store'}", *settings):
        words += ["--set", setting]
    code = launch.main(words)
    if code or os.getpid() != this:  # the run's own process ends here too
        return code
    report(task, out, args.seed, started)
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m opd.quickstart", description=__doc__, epilog="example: python -m opd.quickstart --seed 7"
    )
    parser.add_argument("--task", choices=TASKS, default="toy", help="sums of digits, or a pretrained language model")
    parser.add_argument("--seed", type=int, default=1, help="decides data order and sampling (default: 1)")
    parser.add_argument("--out", help="folder, emptied first (default: build/quickstart, of lm build/quickstart-lm)")
    return parser.parse_args(argv)


def report(task: ModuleType, out: Path, seed: int, started: float) -> None:
    """Write the model, `result.json` and `learning_curve.png` of a finished run and print the table."""
    run_dir = out / RUN_NAME
    rows = read_metrics([LocalStore(run_dir)])
    convert_student(run_dir, out / "model")
    trained = [row for row in rows if "opd/loss" in row]
    found: Report = task.measure(run_dir, out, rows, seed)
    result = {
        **found.facts,
        "steps": len(trained),
        "startup_seconds": trained[0]["time"] - trained[0]["timing_s/step"] - started,
        "train_seconds": trained[-1]["time"] - trained[0]["time"] + trained[0]["timing_s/step"],
        "seed": seed,
    }
    picture = out / "learning_curve.png"
    save_learning_curve(picture, rows, found)
    result["wall_seconds"] = time.time() - started
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print_report(found, result, picture)


def convert_student(run_dir: Path, target: Path) -> Path:
    """Convert the student's newest checkpoint to a Hugging Face folder, and compare both."""
    from opd.convert.pipeline import convert_checkpoint

    newest = run_dir / step_folder(saved_steps(LocalStore(run_dir))[0])
    convert_checkpoint(Convert(checkpoint=str(newest), target=str(target)))
    return target


if __name__ == "__main__":
    sys.exit(main())
