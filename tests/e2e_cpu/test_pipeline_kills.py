"""A pipeline that is killed at ten seeded points, between and inside of its stages, ends as the uninterrupted one, bit for bit.

Each point is a state of the pipeline that surely comes, and is held where it would pass: the driver stops itself as it saves
(`tests.chaos.marks`), the stopped launcher begins no other stage, pods that asked for a save are waited for. All processes are
frozen before the first of them ends, as when a pod's memory is gone: none sees another one die, and none unwinds.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.chaos.attempt import Attempt
from tests.chaos.attempt import start as start_marked
from tests.chaos.compare import Places, differences
from tests.e2e_cpu.runs import SPECS, finish, start

from opd.config.base import TRAINS
from opd.config.load import load_spec
from opd.config.pipeline import Stage, stages_of
from opd.pods import stop
from opd.store.local import LocalStore

SPEC = "sparse-to-dense"
NUM_KILLS, NUM_BETWEEN, NUM_CONVERSIONS = 10, 3, 2
TIMEOUT_S = 3600.0
_LOCAL, _STORE = f"out/{SPEC}/stages", f"out/store/{SPEC}/stages"
_IN_A_SAVE, _IN_A_STEP = ("upload", "seal"), "generation"
_BETWEEN = ("its result is stored", "the pipeline waits for pods that asked for a save")


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where to kill.

    Attributes:
        run: name of the run of the stage.
        where: what it is doing; one of `_BETWEEN`, or a phase of `tests.chaos.marks`, or what a conversion or a start does.
        nth: how often the phase has been entered by then.
        following: name of the next stage's run, for a point between stages.
    """

    run: str
    where: str
    nth: int = 0
    following: str = ""

    def __str__(self) -> str:
        stage = self.run.removeprefix(f"{SPEC}-")
        if self.following:
            return f"between {stage} and {self.following.removeprefix(f'{SPEC}-')}: {self.where}"
        return f"inside {stage}: {self.where}" + (f", {self.nth} of 3" if self.nth else "")

    def reach(self, folder: Path, attempt: Attempt, begun: int) -> None:
        """Wait for the point and freeze every process there.

        Args:
            begun: attempts that the run had before this start.
        """
        if self.following:
            self._hold_between(folder, attempt, begun)
        elif self.nth:
            self._hold_driver(folder, attempt)
        else:
            is_there = self._is_writing if self.where == "writing" else self._is_starting
            assert attempt.until(lambda: is_there(folder), TIMEOUT_S), attempt.output[-4000:]
        attempt.freeze()
        if self.following:
            assert _has(folder, self.run, "result.json"), f"{self}: killed before"
            assert not _has(folder, self.following, "attempts/*/owner.json"), f"{self}: killed behind"
        else:
            assert self._is_running(folder), f"{self}: killed behind"
            assert self.where != "writing" or self._is_writing(folder), f"{self}: killed behind"

    def num_begun(self, folder: Path) -> int:
        """Attempts that the run has by now."""
        return len(list((folder / _STORE / self.run).glob("attempts/*/owner.json")))

    def _is_running(self, folder: Path) -> bool:
        return self.num_begun(folder) > 0 and not _has(folder, self.run, "result.json")

    def _is_starting(self, folder: Path) -> bool:
        """Ray is up, trainer and rollout server are not: seconds before the first answer."""
        logs = (folder / _LOCAL / self.run).glob("attempts/*/driver.log")
        return self._is_running(folder) and any("starting trainer" in log.read_text() for log in logs)

    def _is_writing(self, folder: Path) -> bool:
        """A conversion has its folder beside the checkpoint, and has not published it."""
        return self._is_running(folder) and _has(folder, self.run.removesuffix("-model"), "checkpoints/.*.part-*")

    def _hold_driver(self, folder: Path, attempt: Attempt) -> None:
        """The driver stops itself at the mark; in a stage before this point's it is let go on."""

        def has_stopped() -> bool:
            driver = attempt.stopped_driver()
            if driver is None:
                return False
            if self._is_running(folder):
                return True
            driver.send_signal(signal.SIGCONT)
            return False

        assert attempt.until(has_stopped, TIMEOUT_S), attempt.output[-4000:]

    def _hold_between(self, folder: Path, attempt: Attempt, begun: int) -> None:
        """The launcher is stopped while the stage runs, and so does not begin the next one."""
        assert attempt.until(lambda: self.num_begun(folder) > begun, TIMEOUT_S), attempt.output[-4000:]
        attempt.process.send_signal(signal.SIGSTOP)
        assert attempt.until(lambda: _has(folder, self.run, "result.json"), TIMEOUT_S), attempt.output[-4000:]
        if self.where == _BETWEEN[1]:
            assert attempt.until(lambda: attempt.driver() is None, TIMEOUT_S)
            run_dir = folder / "out" / SPEC
            request = stop.ask(run_dir, reason="its pod is being deleted", hold_s=TIMEOUT_S)
            attempt.process.send_signal(signal.SIGCONT)
            answer = run_dir / stop.FOLDER / f"{request.id}.answer"
            assert attempt.until(answer.exists, TIMEOUT_S), attempt.output[-4000:]


def _has(folder: Path, run: str, pattern: str) -> bool:
    return any((folder / _STORE / run).glob(pattern))


def _drawn(stages: Sequence[Stage], seed: int) -> list[Point]:
    """One point inside of each stage, some inside of conversions and some between, in the order of the pipeline."""
    rng = random.Random(seed)
    runs = [stage.spec.name for stage in stages]
    conversions = [stage.spec.name for stage in stages if stage.spec.kind == "convert"]
    trains = [stage.spec.name for stage in stages if stage.spec.kind in TRAINS]
    phases = [rng.choice(_IN_A_SAVE) for _ in range(len(trains) - 2)] + [_IN_A_STEP, "starting"]
    rng.shuffle(phases)
    points = [
        Point(run=run, where=phase, nth=0 if phase == "starting" else rng.randint(1, 3))
        for run, phase in zip(trains, phases, strict=True)
    ]
    points += [Point(run=stage.spec.name, where="starting") for stage in stages if stage.spec.kind == "passrate"]
    points += [Point(run=run, where="writing") for run in rng.sample(conversions, NUM_CONVERSIONS)]
    gaps = rng.sample(list(itertools.pairwise(runs)), NUM_BETWEEN)
    wheres = [*_BETWEEN, rng.choice(_BETWEEN)]
    rng.shuffle(wheres)
    points += [Point(run=run, where=where, following=next_) for (run, next_), where in zip(gaps, wheres, strict=True)]
    return sorted(points, key=lambda point: (runs.index(point.run), point.following != ""))


def _unequal(stages: Sequence[Stage], whole: Path, killed: Path, num_starts: int) -> Iterator[str]:
    for stage in stages:
        name = stage.spec.name
        places = [
            Places(local=LocalStore(base / _LOCAL / name), store=LocalStore(base / _STORE / name))
            for base in (whole, killed)
        ]
        if stage.spec.kind in TRAINS:
            found = differences(*places, num_starts=num_starts)
        else:
            files = [base / _STORE / name / "eval" for base in (whole, killed)]
            tables = [{path.name: pq.read_table(path).to_pylist() for path in at.glob("*.parquet")} for at in files]
            found = [] if tables[0] == tables[1] else ["other answers"]
            results = [_result(base, base / _STORE / name) for base in (whole, killed)]
            found += [] if results[0] == results[1] else [f"result {results[1]}, was {results[0]}"]
        yield from (f"{stage.name}: {difference}" for difference in found)
    yield from _unequal_folders(whole / _STORE, killed / _STORE)


def _result(base: Path, run: Path) -> object:
    """A run's result without the number of its attempt and what a clock and the place on the disk decide."""

    def hook(found: dict[str, object]) -> dict[str, object]:
        return {key: value for key, value in found.items() if key not in ("attempt", "finished_at_s")}

    text = (run / "result.json").read_text().replace(str(base), "")
    return json.loads(text, object_hook=hook)


def _unequal_folders(whole: Path, killed: Path) -> Iterator[str]:
    """The converted models, file by file."""
    for path in sorted(whole.glob("*/checkpoints/*-huggingface/*.safetensors")):
        if path.read_bytes() != (killed / path.relative_to(whole)).read_bytes():
            yield f"{path.relative_to(whole)} has other bytes"


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Ray's files: a short path, since it holds sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(13 * TIMEOUT_S)
@pytest.mark.parametrize("seed", [1])
def test_kill_9_at_ten_seeded_points_ends_as_the_uninterrupted_pipeline_bit_for_bit(
    tmp_path: Path, ray_folder: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    stages = stages_of(load_spec(SPECS / f"{SPEC}.yaml").spec)
    points = _drawn(stages, seed)
    assert len(points) == NUM_KILLS
    finish(start(whole, SPEC), whole, SPEC, timeout_s=TIMEOUT_S).must_be_clean()
    for number, point in enumerate(points, start=1):
        freeze_at = f"{point.where}:{point.nth}" if point.nth else ""
        begun = point.num_begun(killed)
        attempt = start_marked(killed, ray_folder=ray_folder, freeze_at=freeze_at, spec=SPECS / f"{SPEC}.yaml")
        try:
            point.reach(killed, attempt, begun)
            num_finished = len(list((killed / _STORE).glob("*/result.json")))
            attempt.kill_tree()
        finally:
            attempt.end()
        attempt.must_leave_nothing()
        record_property("kill", f"{number} | {point} | {num_finished} of {len(stages)}")
    ended = finish(start(killed, SPEC), killed, SPEC, timeout_s=TIMEOUT_S).must_be_clean()
    assert "resuming from step" in "".join(path.read_text() for path in killed.rglob("driver.log")) + ended.output
    assert list(_unequal(stages, whole, killed, num_starts=NUM_KILLS + 1)) == []
