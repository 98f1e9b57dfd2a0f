"""`python -m tests.chaos [NAME ...]`: break real runs in every promised way, print progress; all of them write the table.

Exits 1 if a promise was not kept. The remains of a failed scenario are in build/chaos/NAME.
"""

import argparse
import datetime
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tests.chaos import kills, outages, overtaken, poison, ranks, stalls  # noqa: F401 - the scenarios enter themselves
from tests.chaos.attempt import ROOT, Broken
from tests.chaos.context import Context, Shared
from tests.chaos.scenario import SCENARIOS
from tests.results import write_results

FOLDER = ROOT / "build" / "chaos"
TABLE = Path(__file__).parent / "RESULTS.md"
DEFAULT_SEED = 1
HEAD = """# Faults: the last run of `make chaos`

Written by the run. Each row breaks a real run of the trainer (`specs/chaos.yaml`: 8 steps, a checkpoint each, fp32 on a
CPU). Equal means: as the uninterrupted run, bit for bit, in weights, optimizer, rng, metrics but for times, and result."""


class Row(NamedTuple):
    """One played scenario; `scenario`, `done` and `promised` are its own words."""

    scenario: str
    done: str
    promised: str
    observed: str
    seconds: float
    ok: bool


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"scenarios, by default all: {', '.join(SCENARIOS)}")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of the kills' times (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the runs (default: %(default)s)")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in SCENARIOS]:
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    folder = args.folder.resolve()  # runs have working directories of their own
    chosen = args.names or list(SCENARIOS)
    for asked in (signal.SIGTERM, signal.SIGINT):  # also where a shell started this in the background
        signal.signal(asked, _interrupt)
    shared = Shared(folder=_emptied(folder / "shared"), seed=args.seed, say=_say)
    rows = []
    try:
        for number, name in enumerate(chosen, start=1):
            _say(f"{name}: {SCENARIOS[name].done}")
            rows.append(row := play(name, shared, folder / name))
            verdict = "ok" if row.ok else "FAILED"
            _say(f"[{number}/{len(chosen)}] {row.scenario}: {verdict} in {row.seconds:.0f} s: {row.observed}")
    finally:
        shared.end()
    if not args.names:
        kept, minutes = sum(row.ok for row in rows), sum(row.seconds for row in rows) / 60
        cells = ((*row[:4], f"{row.seconds:.0f}", "yes" if row.ok else "**NO**") for row in rows)
        head = f"{HEAD}\n\n{kept} of {len(rows)} ok in {minutes:.0f} minutes."
        write_results(TABLE, head, ("scenario", "done", "promised", "observed", "s", "ok"), cells)
    failed = [row.scenario for row in rows if not row.ok]
    _say(f"{len(chosen) - len(failed)} of {len(chosen)} ok" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def play(name: str, shared: Shared, folder: Path) -> Row:
    """Run one scenario in its emptied folder, which stays only if it fails; its processes never do."""
    one, started_s = SCENARIOS[name], time.monotonic()
    try:
        context = Context(folder=_emptied(folder), shared=shared)
        try:
            observed, ok = one.run(context), True
        finally:
            context.end()
        shutil.rmtree(folder)
    except Broken as error:
        observed, ok = str(error), False
    except Exception as error:  # noqa: BLE001 - the other scenarios still run, and the row says what happened
        traceback.print_exc()
        observed, ok = f"{type(error).__name__}: {error}", False
    seconds = round(time.monotonic() - started_s, 1)
    return Row(name, one.done, one.promised, observed.replace(f"{ROOT}/", ""), seconds, ok)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Unwind, so that no process of a scenario is left."""
    raise SystemExit(128 + number)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
