"""The simulator: its schedules repeat, the control code holds in them, and a bug shows."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commit import ROOT
from tests.simulator.bugs import BUGS, hunt
from tests.simulator.scheduler import Failure
from tests.simulator.world import World

# Less than pytest gives a test.
TIMEOUT_S = 480


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The simulator in a session of its own, of which nothing is left when this returns or raises."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.simulator", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONHASHSEED": "0"}, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.slow
def test_the_control_code_holds_in_schedules() -> None:
    # The same ones at every commit and on every machine; `make simulate` plays the commit's own seeds.
    played = simulate("--seed", "0", "--count", "800", "--processes", "2")
    print(played.stdout)
    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.slow
def test_a_seed_replays_exactly() -> None:
    first, second = simulate("--seed", "7"), simulate("--seed", "7")
    assert first.stdout == second.stdout
    assert "seed 7 steps 150 commit " in first.stdout


@pytest.mark.parametrize("stray", ["twice", ""])
def test_a_seal_that_is_taken_before_its_report_is_lost_unless_the_store_took_it(stray: str) -> None:
    oracle, complete = World(1, 0).oracle, "bucket/runs/r/checkpoints/global_step_2/COMPLETE"
    oracle.begun(2)
    oracle.changed(complete, 0, "")
    if stray:
        oracle.changed(complete, 0, stray)
    oracle.sealed(2, 0, [], is_in_store=True)
    with contextlib.nullcontext() if stray else pytest.raises(Failure, match="step 2 was reported safe"):
        oracle.chosen(0, 0, [], met_read_faults=False, rejected=())


@pytest.mark.slow
def test_a_planted_bug_is_found_and_printed_with_its_seed() -> None:
    bug = next(bug for bug in BUGS if bug.what == "an end that is taken back stays on the disk")
    assert "replay: make simulate SEED=" in hunt(bug, 60, 1)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_a_planted_bug_fits_the_code(bug, tmp_path: Path) -> None:
    path = tmp_path / "opd" / bug.file
    path.parent.mkdir(parents=True)
    path.write_text((ROOT / "src/opd" / bug.file).read_text())
    bug.apply(tmp_path)
    compile(path.read_text(), str(path), "exec")
