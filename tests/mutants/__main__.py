"""`make mutants`: breaks the code on purpose, one place at a time, and shows which breaks no test notices.

The named mutants (`named.py`) are faults that once lived; `--drawn N --seed S` draws more from the syntax of the files that keep
a run's data. Each runs in a copy of `src/` with the tests that cover its file. A mutant that every test survives is printed and
makes the exit code 1, unless `equivalent.py` says why nobody could notice it; tests that fail on the code as it is make it 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.drawn import FILES, draw
from tests.mutants.mutant import Mutant
from tests.mutants.named import NAMED
from tests.mutants.results import judge, table
from tests.mutants.trial import ROOT, SURVIVED, key_of, prepare, run_trials


class Verdicts:
    """Those of earlier calls, in a file of JSON lines; they hold while the mutated file and the files of its tests stay."""

    def __init__(self, path: Path | None):
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._known = dict(json.loads(line) for line in lines)

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def add(self, key: str, verdict: str) -> None:
        if self._path is not None and key not in self._known:
            with self._path.open("a") as file:
                file.write(json.dumps([key, verdict]) + "\n")


def in_order(mutants: Sequence[Mutant]) -> list[tuple[Mutant | None, tuple[str, ...]]]:
    """Grouped by their tests, which run without a mutant first; the slow tests last."""
    order = list(FILES.values())
    groups: dict[tuple[str, ...], list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(mutant.tests, []).append(mutant)
    return [
        (mutant, tests)
        for tests in sorted(groups, key=lambda tests: order.index(tests) if tests in order else -1)
        for mutant in (None, *groups[tests])
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="how many to draw beside the named ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="WORDS", help="only the mutants whose line holds these")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="how many to run beside each other")
    parser.add_argument(
        "--verdicts", type=Path, metavar="FILE", help="keeps verdicts; later calls run what has changed"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="writes the table of results, in Markdown")
    args = parser.parse_args(argv)
    mutants = [m for m in [*NAMED, *draw(ROOT / "src", args.drawn, seed=args.seed)] if args.only in m.describe()]
    verdicts = Verdicts(args.verdicts)
    prepare()
    judged: dict[Mutant, str] = {}
    try:
        for mutant, tests, verdict in run_trials(in_order(mutants), args.at_once, verdicts.get):
            verdicts.add(key_of(mutant, tests), verdict)
            if mutant is not None:
                judged[mutant] = judge(mutant, verdict)
                print(f"{len(judged)}/{len(mutants)} {mutant.describe()}: {judged[mutant]}", flush=True)
            elif verdict != SURVIVED:
                print(
                    f"without a mutant {' '.join(tests)} fails and would seem to kill all: {verdict}", file=sys.stderr
                )
                return 2
    finally:
        if args.results:
            call = f"make mutants ARGS='--drawn {args.drawn} --seed {args.seed}'"
            args.results.write_text(table(mutants, judged, call))
    num_survivors = list(judged.values()).count(SURVIVED)
    print(f"{len(mutants) - num_survivors} of {len(mutants)} killed or equivalent")
    return 1 if num_survivors else 0


if __name__ == "__main__":
    sys.exit(main())
