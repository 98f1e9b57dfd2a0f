"""A pipeline that is killed at ten seeded points, between and inside of its stages, ends as the uninterrupted one, bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.chaos.compare import Places, differences
from tests.e2e_cpu.runs import finish, run_and_kill, start

from opd.config.defaults import TRAINS
from opd.config.load import load_spec
from opd.config.pipeline import stages_of
from opd.store.local import LocalStore

SPEC = "sparse-to-dense"
NUM_KILLS = 10
TIMEOUT_S = 3600.0
MAX_DELAY_S = 2.0
# Files that every start of a stage would write anew do not say how far it has come.
_BY_START = ("attempts/", "logs/", ".lock", ".tmp", ".saving-")
_LAST = ("COMPLETE", "result.json")
_STAGES = f"out/{SPEC}/stages", f"out/store/{SPEC}/stages"


def _marks(whole: Path) -> list[Path]:
    """How far an uninterrupted pipeline has come: the first file of each folder and the last of each step and run, in order of time."""
    found = [path for folder in _STAGES for path in (whole / folder).rglob("*") if path.is_file()]
    once = [path for path in found if not any(part in path.as_posix() for part in _BY_START)]
    marks: list[Path] = []
    for path in sorted(once, key=lambda path: path.stat().st_mtime_ns):
        if path.name in _LAST or not any(mark.parent == path.parent and mark.name not in _LAST for mark in marks):
            marks.append(path)
    return [mark.relative_to(whole) for mark in marks]


def _drawn(marks: list[Path], seed: int) -> list[tuple[Path, float]]:
    """The points of the kills, in the order of the pipeline: so many seconds after a file has appeared."""
    rng = random.Random(seed)
    # A kill may come after later files than its own; the last ones are left for those whose file is there already.
    places = sorted(rng.sample(range(len(marks) - NUM_KILLS // 2), NUM_KILLS))
    return [(marks[place], rng.uniform(0, MAX_DELAY_S)) for place in places]


def _unequal(whole: Path, killed: Path, num_starts: int) -> Iterator[str]:
    local, store = _STAGES
    for stage in stages_of(load_spec(Path(__file__).parent / "specs" / f"{SPEC}.yaml").spec):
        places = [
            Places(local=LocalStore(base / local / stage.spec.name), store=LocalStore(base / store / stage.spec.name))
            for base in (whole, killed)
        ]
        if stage.spec.kind in TRAINS:
            found = differences(*places, num_starts=num_starts)
        else:
            files = [base / store / stage.spec.name / "eval" for base in (whole, killed)]
            tables = [{path.name: pq.read_table(path).to_pylist() for path in at.glob("*.parquet")} for at in files]
            found = [] if tables[0] == tables[1] else ["other answers"]
            results = [_result(base, base / store / stage.spec.name) for base in (whole, killed)]
            found += [] if results[0] == results[1] else [f"result {results[1]}, was {results[0]}"]
        yield from (f"{stage.name}: {difference}" for difference in found)
    yield from _unequal_folders(whole / store, killed / store)


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


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(13 * TIMEOUT_S)
@pytest.mark.parametrize("seed", [1])
def test_kill_9_at_ten_seeded_points_ends_as_the_uninterrupted_pipeline_bit_for_bit(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(whole, SPEC), whole, SPEC, timeout_s=TIMEOUT_S).must_be_clean()
    marks = _marks(whole)
    num_kills = 0
    for mark, delay_s in _drawn(marks, seed):
        left = [killed / later for later in marks[marks.index(mark) :] if not (killed / later).exists()]
        finished = {path.parent.name for path in (killed / _STAGES[1]).glob("*/result.json")}
        seen = run_and_kill(left, killed, SPEC, timeout_s=TIMEOUT_S, after_s=delay_s)
        num_kills += 1
        among = "; ".join(sorted(finished)) or "none"
        record_property("kill", f"{num_kills} | {delay_s:.2f} s after `{seen.relative_to(killed / 'out')}` | {among}")
    ended = finish(start(killed, SPEC), killed, SPEC, timeout_s=TIMEOUT_S).must_be_clean()
    assert "resuming from step" in "".join(path.read_text() for path in killed.rglob("driver.log")) + ended.output
    assert num_kills == NUM_KILLS
    assert list(_unequal(whole, killed, num_starts=NUM_KILLS + 1)) == []
