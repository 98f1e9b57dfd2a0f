"""`python -m tests.chaos [NAME ...]`: break real runs in every promised way, print progress, write the table.

Exits 1 if a promise was not kept. What a failed scenario left lies in build/chaos/NAME.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tests.chaos import (  # noqa: F401 - the scenarios enter themselves
    kills,
    outages,
    overtaken,
    poison,
    ranks,
    report,
    stalls,
)
from tests.chaos.attempt import ROOT, Broken
from tests.chaos.context import Context, Shared
from tests.chaos.report import Row
from tests.chaos.scenario import SCENARIOS, Scenario
from tests.commit import this_commit

FOLDER = ROOT / "build" / "chaos"
DEFAULT_SEED = 1


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"scenarios, by default all: {', '.join(SCENARIOS)}")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of the kills' times (default: %(default)s)")
    parser.add_argument("--table", type=Path, default=report.TABLE, help="the Markdown file (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of everything else (default: %(default)s)")
    args = parser.parse_args()
    names = args.names or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    args.folder = args.folder.resolve()  # runs have working directories of their own
    chosen, summary = [SCENARIOS[name] for name in names], args.folder / "summary.json"
    rows = report.read_rows(summary) if args.names else {}
    for asked in (signal.SIGTERM, signal.SIGINT):  # also where a shell started this in the background
        signal.signal(asked, _interrupt)
    args.folder.mkdir(parents=True, exist_ok=True)
    shared = Shared(folder=_emptied(args.folder / "shared"), seed=args.seed, say=_say)
    try:
        for number, row in enumerate(_played(chosen, shared, args.folder), start=1):
            rows[row.scenario] = row
            verdict = "ok" if row.ok else "FAILED"
            _say(f"[{number}/{len(chosen)}] {row.scenario}: {verdict} in {row.seconds:.0f} s: {row.observed}")
            order = [*SCENARIOS, *sorted(set(rows) - set(SCENARIOS))]
            not_run = [name for name in order if name not in rows]
            report.write([rows[name] for name in order if name in rows], summary, args.table, not_run=not_run)
    finally:
        shared.end()
    failed = [one.name for one in chosen if not rows[one.name].ok]
    _say(f"{len(chosen) - len(failed)} of {len(chosen)} ok" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _played(chosen: list[Scenario], shared: Shared, folder: Path) -> Iterator[Row]:
    """Play the scenarios one after another; yield their rows."""
    for one in chosen:
        _say(f"{one.name}: {one.done}")
        yield play(one, shared, folder / one.name)


def play(one: Scenario, shared: Shared, folder: Path) -> Row:
    """Run one scenario in its emptied folder, which stays only if it fails; its processes never do."""
    date, commit = datetime.date.today().isoformat(), this_commit(report.TABLE)
    started_s = time.monotonic()
    try:
        if not one.has_own_reference:
            shared.reference()
        started_s = time.monotonic()
        context = Context(name=one.name, folder=_emptied(folder), shared=shared, say=lambda text: _say(f"  {text}"))
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
    return Row(
        scenario=one.name,
        done=one.done,
        promised=one.promised,
        observed=observed.replace(f"{ROOT}/", ""),
        seconds=seconds,
        ok=ok,
        date=date,
        commit=commit,
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Unwinds, so that no process of a scenario is left behind."""
    raise SystemExit(128 + number)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
