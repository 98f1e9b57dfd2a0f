"""The simulator: its disk loses what may be lost, its schedules repeat, the control code holds in them, and a bug shows."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commit as commits
from tests.commit import ROOT
from tests.simulator import tally
from tests.simulator.bugs import BUGS, hunt
from tests.simulator.disk import Disk
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


def test_a_tag_does_not_hide_the_commit_whose_seeds_are_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@example.com"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"], ["tag", "-a", "v0.1.0", "-m", "x"]):
        subprocess.run([*git, *words], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull})
    monkeypatch.setattr(commits, "ROOT", tmp_path)
    monkeypatch.delenv("COMMIT", raising=False)
    int(tally.commit.__wrapped__()[:7], 16)


@pytest.mark.slow
def test_a_planted_bug_is_found_and_printed_with_its_seed() -> None:
    bug = next(bug for bug in BUGS if bug.what == "an end that is taken back stays on the disk")
    verdict = hunt(bug, 60, 1)
    assert verdict.num is not None, verdict.what
    assert "replay: make simulate SEED=" in verdict.what


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_a_planted_bug_fits_the_code(bug, tmp_path: Path) -> None:
    path = tmp_path / "opd" / bug.file
    path.parent.mkdir(parents=True)
    path.write_text((ROOT / "src/opd" / bug.file).read_text())
    bug.apply(tmp_path)
    compile(path.read_text(), str(path), "exec")


# ---- the disk --------------------------------------------------------------------------------------------------------


def disk_with(*, synced_bytes: bool, synced_name: bool) -> Disk:
    disk = Disk("d", lambda: 0.0)
    node = disk.create(("file",), "file", is_exclusive=True, truncates=False)
    disk.write(node, 0, b"bytes")
    if synced_bytes:
        node.sync()
    if synced_name:
        disk.root.sync()
    return disk


def left_of(disk: Disk, seed: int) -> bytes | None:
    disk.cut_power(random.Random(seed))
    node = disk.root.names.get("file")
    return None if node is None else node.data


def test_what_was_synced_with_its_name_outlives_every_power_cut() -> None:
    assert {left_of(disk_with(synced_bytes=True, synced_name=True), seed) for seed in range(100)} == {b"bytes"}


def test_a_name_that_was_not_synced_may_be_gone() -> None:
    assert {left_of(disk_with(synced_bytes=True, synced_name=False), seed) for seed in range(100)} == {None, b"bytes"}


def test_bytes_that_were_not_synced_may_be_gone_or_torn() -> None:
    left = {left_of(disk_with(synced_bytes=False, synced_name=True), seed) for seed in range(300)}
    assert left == {b"bytes"[:length] for length in range(6)}


def test_a_rename_loses_neither_name_before_it_is_synced_and_may_leave_the_old_file() -> None:
    seen = set()
    for seed in range(200):
        disk = disk_with(synced_bytes=True, synced_name=True)
        for folder in ("a", "b"):
            disk.make_folder((folder,), folder)
        disk.root.sync()
        disk.rename(("file",), ("a", "file"), "")
        disk.cut_power(random.Random(seed))
        places = ("file" in disk.root.names, "file" in disk.root.names["a"].names)
        assert any(places)
        seen.add(places)
    assert seen == {(True, False), (False, True), (True, True)}


def test_after_an_fsync_that_failed_a_later_one_writes_nothing() -> None:
    disk = disk_with(synced_bytes=False, synced_name=True)
    node = disk.root.names["file"]
    node.is_broken = True
    node.sync()
    assert {left_of(disk, 1), b"bytes"} - {b"bytes"}, "the cut of this seed keeps nothing that was not synced"
