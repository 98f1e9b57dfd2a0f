"""`make mutants`: breaks the code on purpose, one place at a time, and shows which breaks no test notices.

The named mutants (`named.py`) are faults that once lived; `--drawn N --seed S` draws more from the syntax of the files that keep
a run's data. Each runs in a copy of `src/` with the tests that cover its file; a mutant that every test survives is printed and
makes the exit code 1; tests that fail on the code as it is make it 2. `--only WORDS` takes the mutants whose line holds them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.drawn import draw
from tests.mutants.mutant import Mutant
from tests.mutants.named import NAMED

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 900.0
KILLED, SURVIVED, TIMED_OUT = "killed", "SURVIVED", "killed (it never ended)"


def judge(mutant: Mutant | None, tests: Sequence[str], folder: Path) -> str:
    """Apply the mutant, or nothing, to a copy of the sources and run the tests."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        mutant.apply(source)
    # The copy comes before the `pythonpath` of pyproject.toml, for the tests and for the processes that they start.
    options = ["-x", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={source} {ROOT / 'tools'} {ROOT}"]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={folder / 'tmp'}", *tests]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
    if code not in (0, 1, 2):  # 2: the mutated module cannot even be imported by its tests
        raise RuntimeError(f"pytest ended with {code}: {' '.join(command)}")
    return SURVIVED if code == 0 else KILLED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="how many to draw beside the named ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="WORDS")
    args = parser.parse_args(argv)
    mutants = [m for m in [*NAMED, *draw(ROOT / "src", args.drawn, seed=args.seed)] if args.only in m.describe()]
    for tests in sorted({mutant.tests for mutant in mutants}):
        with tempfile.TemporaryDirectory(prefix="opd-mutant-") as folder:
            if judge(None, tests, Path(folder)) != SURVIVED:
                print(f"{' '.join(tests)} fails without a mutant, so it would seem to kill every one", file=sys.stderr)
                return 2
    survivors = 0
    for number, mutant in enumerate(mutants, start=1):
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="opd-mutant-") as folder:
            verdict = judge(mutant, mutant.tests, Path(folder))
        survivors += verdict == SURVIVED
        print(f"{number}/{len(mutants)} {verdict} {time.monotonic() - began_s:.0f} s: {mutant.describe()}", flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
