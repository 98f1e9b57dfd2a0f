"""Faults planted in the control code, each of which some schedule must show: `make simulate ARGS=--bugs`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.commit import ROOT
from tests.mutants.mutant import Mutant
from tests.simulator.tally import FIRST_SHOWN, NUM_DISTURBED, NUM_SHOWN, commit

MOST_SCHEDULES = 50_000
# Most bugs are found within as many.
SOON = 500


def _bug(file: str, what: str, old: str, new: str) -> Mutant:
    return Mutant(file=file, what=what, old=old, new=new)


BUGS = [
    _bug("store/durable.py", "new folders are not synced", "    try:\n        fsync_folder(folder.parent)", "    try:\n        pass"),
    _bug("store/durable.py", "names of saved files are not synced", "    for folder in sorted(folders, reverse=True):  # the deepest first", "    for folder in ():"),
    _bug("store/durable.py", "bytes of saved files are not synced", "        if sync:\n", "        if False:\n"),
    _bug("store/local.py", "bytes of a put are not synced", "        os.fsync(file.fileno())", "        pass"),
    _bug("store/local.py", "the name of a created object is not synced", "        fsync_folder(target.parent)\n", ""),
    _bug("store/local.py", "put in place instead of by rename",
         "            _write_synced(temporary, data)\n            os.replace(temporary, self.local_path(key))",
         "            self.local_path(key).write_bytes(data)"),
    _bug("runs/metrics.py", "metrics are not synced", "                os.fsync(self._descriptor)\n", ""),
    _bug("runs/checkpoints.py", "a seal does not wait for the metrics", "        self.before_local_seal()\n", ""),
    _bug("store/local.py", "the name of a put is not synced",
         "        fsync_folder(temporary.parent)\n\n    def _put_file", "\n    def _put_file"),
    _bug("store/local.py", "a claim on a folder replaces another's", "            os.link(temporary, target)",
         "            os.replace(temporary, target)"),
    _bug("store/remote.py", "a claim in a bucket replaces another's", 'data, mode="create")', "data)"),
    _bug("runs/checkpoints.py", "a seal in the store does not wait for the stream", "        self.before_store_seal()\n", ""),
    _bug("runs/lease.py", "an attempt that the store refuses trains on", "        if trouble is None or self.lost is not None or not is_too_old:", "        if True:"),
    _bug("runs/stream.py", "an upload without an answer is forgotten",
         "        self._unsure_bytes = len(data)\n", ""),
    _bug("runs/stream.py", "the stream ends with the first error", "                except Exception as error:  # noqa: BLE001 - this thread carries",
         "                except MemoryError as error:  # noqa: BLE001 - this thread carries"),
    _bug("runs/attempts.py", "a living owner is not waited for", "        if living is None or asked_at_s - since_s > living.lease_ttl_s:",
         "        if True:"),
    _bug("runs/metrics.py", "only the store's rows are read", "rows[attempt], skipped = parse_metrics(max(copies, key=len)",
         "rows[attempt], skipped = parse_metrics(copies[0]"),
    _bug("runs/checkpoints.py", "the local steps are not looked at", "for place in self.places for step in saved_steps(place)}", "for place in self.places[-1:] for step in saved_steps(place)}"),
    _bug("runs/checkpoints.py", "a step is taken although its files are damaged",
         "                if problems := fetch(manifest, place.url if place is self.remote else None):", "                if False:"),
    _bug("runs/checkpoints.py", "an older step is taken while the store is away",
         "                if isinstance(error, StoreError) and place is not self.local:\n                    raise\n", ""),
    _bug("runs/lease.py", "a lock that is held counts as free", "                return True\n", "                return False\n"),
    _bug("runs/attempts.py", "a lock of another machine counts", "    if not owner.boot_id or owner.boot_id != boot_id():", "    if False:"),
    _bug("runs/run.py", "the end does not upload what is left", "            self._upload_streams()\n            # Before", "            # Before"),
    _bug("update/checkpointing.py", "a save does not wait for the one that is on its way",
         "not self._job.ended.wait(within_s)", "not self._job.ended.is_set()"),
    _bug("runs/metrics.py", "the name of the metrics is not synced", "                fsync_folder(self.path.parent)\n", ""),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a bug was found: after how many schedules, with those that show where faults can be aimed, and what it did."""

    bug: Mutant
    num: int | None
    what: str

    def describe(self) -> str:
        how = "NOT FOUND" if self.num is None else f"found after {self.num} schedules"
        return f"{how}: {self.bug.describe()}\n    {self.what}"


def hunt(bug: Mutant, most: int, processes: int) -> Verdict:
    """Plays schedules from seed 0 on against a copy of the code with the bug in it, until one fails."""
    with tempfile.TemporaryDirectory(prefix="opd-bug-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        bug.apply(source)
        path = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "tests.simulator", "--seed", "0", "--count", str(most), "--until-failure"]
        played = subprocess.run(
            [*command, "--processes", str(processes)], cwd=ROOT, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    lines = played.stdout.splitlines()
    place = next((number for number, line in enumerate(lines) if line.startswith("FAILED seed ")), None)
    if place is None:
        return Verdict(bug=bug, num=None, what=played.stderr[-300:])
    seed = int(lines[place].split()[2])
    num = seed - FIRST_SHOWN if seed >= FIRST_SHOWN else NUM_SHOWN + NUM_DISTURBED + seed
    return Verdict(bug=bug, num=num + 1, what="\n    ".join(lines[place : place + 2]))


def hunt_all(most: int, processes: int, out: Any) -> int:
    """Every bug; 1 if one is not found.

    Most show soon: they are looked for side by side, and each of the others in all processes.
    """
    verdicts = {}
    with ThreadPoolExecutor(processes) as pool:
        soon = pool.map(lambda bug: hunt(bug, min(most, SOON), 1), BUGS)
        for bug, verdict in zip(BUGS, soon, strict=True):
            verdicts[bug.what] = verdict
            if verdict.num is not None:
                print(verdict.describe(), file=out, flush=True)
    for bug in BUGS:
        if verdicts[bug.what].num is None:
            verdicts[bug.what] = hunt(bug, most, processes)
            print(verdicts[bug.what].describe(), file=out, flush=True)
    num_found = sum(verdict.num is not None for verdict in verdicts.values())
    print(f"{num_found} of {len(BUGS)} found within {most:,} schedules each, commit {commit()}.", file=out)
    return int(num_found < len(BUGS))
