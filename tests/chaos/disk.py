"""The scenario of a full disk: the run directory on a small tmpfs in a user and mount namespace, so that no root is needed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.attempt import Broken, require
from tests.chaos.context import Context, last_lines
from tests.chaos.kills import EQUAL
from tests.chaos.scenario import scenario

from opd.runs.resume import complete_steps

# Data, logs and about three checkpoints.
SMALL_MIB, LARGE_MIB = 8, 200
_HOLD = 'mount -t tmpfs -o "size=$0m" opd-chaos "$1" && echo mounted && exec sleep infinity'


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    """A tmpfs of SMALL_MIB on `folder`, seen only inside: the command that runs others inside, and the holder's pid.

    Raises:
        Broken: this machine does not let its users make namespaces.
    """
    folder.mkdir(parents=True)
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _HOLD, str(SMALL_MIB), str(folder)]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stderr is not None
    try:
        if holder.stdout.readline().strip() != "mounted":
            raise Broken(f"a full disk needs user namespaces (or root): {holder.stderr.read().strip()}")
        pid = str(holder.pid)
        enter = ("nsenter", "--target", pid, "--user", "--preserve-credentials", "--mount")
        yield (*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(folder.parent)), holder.pid
    finally:
        holder.kill()
        holder.wait()


@scenario(
    done=f"the run directory's disk of {SMALL_MIB} MiB fills up; then there is room again",
    promised=f"exit 1 and a message that names the full disk; the last complete step stays; {EQUAL}",
)
def disk_full(context: Context) -> str:
    folder = context.folder / "run"
    with small_disk(folder / "out") as (enter, holder):
        case = context.case("run", inside=enter)
        attempt = case.start()
        code = attempt.wait()
        require(code == 1, f"exit {code}: {last_lines(attempt)}")
        attempt.must_leave_nothing()
        full = [line for line in attempt.output.splitlines() if line.startswith("opd.launch:") and "full" in line]
        require(full, f"no line names the full disk: {last_lines(attempt)}")
        case.seen_at = Path(f"/proc/{holder}/root{folder}")
        newest = max(complete_steps([case.places.local]), default=0)
        require(newest > 0, "no complete step is left")
        subprocess.run([*enter, "mount", "-o", f"remount,size={LARGE_MIB}m", str(folder / "out")], check=True)
        last = case.finish()
        case.must_have_resumed(last, newest)
        context.must_equal_reference(case)
        return (
            f"full in step {newest + 1}: “{full[-1].removeprefix('opd.launch: ')[:160]}”; resumed from {newest}; equal"
        )
