"""Faults planted in the control code, each of which some schedule must show: `make simulate ARGS=--bugs`."""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.commit import ROOT, this_commit
from tests.mutants.mutant import Mutant
from tests.processes import ended

MOST_SCHEDULES = 50_000


def _bug(file: str, what: str, old: str, new: str) -> Mutant:
    return Mutant(file=file, what=what, old=old, new=new)


BUGS = [
    _bug("store/durable.py", "new folders are not synced", "    try:\n        fsync_folder(folder.parent)", "    try:\n        pass"),
    _bug("runs/shards.py", "names of saved files are not synced", "        fsync_folder(parent)\n", ""),
    _bug("store/durable.py", "bytes of saved files are not synced", "        if sync:\n", "        if False:\n"),
    _bug("store/durable.py", "bytes of a put are not synced", "        fsync_file(partial)\n", ""),
    _bug("store/local.py", "put in place instead of by rename",
         "        with placing(self.local_path(key), self._synced_folders) as unnamed:\n            unnamed.write_bytes(data)",
         "        with placing(self.local_path(f\"{key}.new\"), self._synced_folders) as unnamed:\n            unnamed.write_bytes(data)\n"
         "        self.local_path(key).write_bytes(data)"),
    _bug("runs/metrics.py", "metrics are not synced", "                os.fsync(self._descriptor)\n", ""),
    _bug("runs/checkpoints.py", "a seal does not wait for the metrics", "        self.before_local_seal()\n", ""),
    _bug("store/durable.py", "the name of a put is not synced", "    fsync_folder(path.parent)\n", ""),
    _bug("store/local.py", "a claim on a folder replaces another's", "            os.link(unnamed, target)",
         "            os.replace(unnamed, target)"),
    _bug("store/remote.py", "a claim in a bucket replaces another's", 'data, mode="create")', "data)"),
    _bug("runs/checkpoints.py", "a seal in the store does not wait for the stream", "        self.before_store_seal()\n", ""),
    _bug("runs/lease.py", "an attempt that the store refuses trains on", "        if self.lost is None and is_too_old:", "        if False:"),
    _bug("runs/stream.py", "an upload without an answer is forgotten",
         "        self._unsure_bytes = len(data)\n", ""),
    _bug("runs/stream.py", "the stream ends with the first error", "                except Exception as error:  # noqa: BLE001 - this thread carries",
         "                except MemoryError as error:  # noqa: BLE001 - this thread carries"),
    _bug("runs/attempts.py", "a living owner is not waited for", "        if living is None or asked_at_s - since_s > living.lease_ttl_s:",
         "        if True:"),
    _bug("runs/metrics.py", "only the store's rows are read", "rows[attempt], skipped = parse_metrics(max(copies, key=len)",
         "rows[attempt], skipped = parse_metrics(copies[0]"),
    _bug("runs/checkpoints.py", "the local steps are not looked at", "for place in self.places for step in sealed.saved_steps(place)}", "for place in self.places[-1:] for step in sealed.saved_steps(place)}"),
    _bug("runs/checkpoints.py", "a step is taken although its files are damaged",
         "                if problems := fetch(manifest, place.url if place is self.remote else None):", "                if False:"),
    _bug("runs/checkpoints.py", "an older step is taken while the store is away",
         "                if isinstance(error, StoreError) and place is not self.local:\n                    raise\n", ""),
    _bug("runs/lease.py", "a lock that is held counts as free", "        return True\n", "        return False\n"),
    _bug("runs/attempts.py", "a lock of another machine counts", "owner.boot_id and owner.boot_id == boot_id():", "owner.boot_id:"),
    _bug("runs/run.py", "the end does not upload what is left", "            self._upload_streams()\n            # Before", "            # Before"),
    _bug("trainer/checkpointing.py", "a save does not wait for the one that is on its way",
         "not self._job.ended.wait(within_s)", "not self._job.ended.is_set()"),
    _bug("runs/metrics.py", "the name of the metrics is not synced", "                fsync_folder(self.path.parent)\n", ""),
    _bug("runs/checkpoints.py", "of two copies of a step the older attempt's is taken", "key=lambda copy: copy[0].attempt, reverse=True", "key=lambda copy: copy[0].attempt"),
    _bug("runs/checkpoints.py", "retention deletes the multiples that it keeps", "if keep_every and step % keep_every == 0", "if keep_every and step % keep_every == 1"),
    _bug("runs/attempts.py", "an end that is taken back stays on the disk",
         "        for store in reversed(self.stores):\n            store.delete", "        for store in self.stores[:1]:\n            store.delete"),
    _bug("runs/summary.py", "an overtaken attempt writes the summary", "        self._claim.check()  # right before", "        # right before"),
    _bug("runs/run.py", "an overtaken attempt finishes the run", "        with self.storing_the_end():\n            self.claim.check()\n", "        with self.storing_the_end():\n"),
]  # fmt: skip


def hunt(bug: Mutant, most: int, processes: int) -> str:
    """Play schedules from seed 0 on against a copy of the code with the bug in it; return the failure of one, or nothing."""
    with tempfile.TemporaryDirectory(prefix="opd-bug-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        bug.apply(source)
        path = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "tests.simulator", "--seed", "0", "--count", str(most), "--until-failure"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0"}
        played = ended(*command, "--processes", processes, cwd=ROOT, env=environment)
    lines = played.stdout.splitlines()
    place = next((number for number, line in enumerate(lines) if line.startswith("FAILED seed ")), len(lines))
    return "\n    ".join(lines[place : place + 2])


def hunt_all(most: int, processes: int, out: Any) -> int:
    """Hunt every bug; return 1 if one is not found."""
    num_found = 0
    for bug in BUGS:
        failure = hunt(bug, most, processes)
        num_found += failure != ""
        print(f"{'found' if failure else 'NOT FOUND'}: {bug.describe()}\n    {failure}", file=out, flush=True)
    print(f"{num_found} of {len(BUGS)} found within {most:,} schedules each, commit {this_commit()}.", file=out)
    return int(num_found < len(BUGS))
