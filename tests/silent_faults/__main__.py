"""`python -m tests.silent_faults`: inject faults into real runs, record their rows, write which of them the monitor named.

Faults take turns within one run of each recipe. Each turn is judged as a run of its own, from its first row on.
"""

import datetime
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opd.monitor.monitor import PREFIX, TRAINING, Monitor
from opd.runs.metrics import read_metrics
from opd.store.local import LocalStore
from tests.commit import this_commit
from tests.e2e_cpu.runs import ROOT, finish, start
from tests.silent_faults import inject
from tests.silent_faults.recipes import INJECTED, NUM_SOUND, RECIPES, Recipe

FOLDER = ROOT / "build" / "silent-faults"
TABLE = Path(__file__).parent / "RESULTS.md"
RECORDED = Path(__file__).parent / "recorded"
NUM_SOUND_RUNS, NUM_SOUND_STEPS, SOUND_SEED = 25, 20, 21
TIMEOUT_S = 3600.0
Rows = list[dict[str, Any]]


class Turn(NamedTuple):
    """A fault's steps in a run: sound from `begins`, faulty from `first` to `last`; then the run's first weights are back."""

    fault: str  # empty: there is none
    begins: int
    first: int
    last: int


SOUND_RUNS = [
    Turn("", begins, begins, begins + NUM_SOUND_STEPS - 1)
    for begins in range(1, NUM_SOUND_RUNS * NUM_SOUND_STEPS, NUM_SOUND_STEPS)
]


def turns(faults: Sequence[str]) -> list[Turn]:
    found, last = [], 0
    for fault in faults:
        sound = last + NUM_SOUND
        found.append(Turn(fault, last + 1, sound + 1, last := sound + INJECTED[fault].num_faulty))
    return found


def play(recipe: Recipe, played: Sequence[Turn], folder: Path, *sets: str) -> Rows:
    """Run the recipe with the faults in turn; return its rows."""
    shutil.rmtree(folder, ignore_errors=True)
    strength = {fault: injected.strengths[recipe.number] for fault, injected in INJECTED.items()}
    schedule = [
        {"fault": one.fault, "first": one.first, "last": one.last, "ends": one.last, "strength": strength.get(one.fault, 0.0)}
        for one in played
    ]  # fmt: skip
    os.environ |= {
        inject.SCHEDULE: json.dumps(schedule),
        "RAY_worker_niceness": "0",  # 15 by default: on a busy machine the workers would hardly run next to anything else
        "VERL_USE_EXTERNAL_MODULES": inject.__name__,
        "PYTHONPATH": os.pathsep.join(str(part) for part in (ROOT / "src", ROOT)),
    }
    settings = ["trainer.val_before_train=false", f"trainer.total_steps={played[-1].last}", "actor.num_warmup_steps=0"]
    process = start(folder, recipe.spec, *settings, *recipe.sets, *sets)
    outcome = finish(process, folder, recipe.spec, TIMEOUT_S)
    if outcome.returncode:
        raise SystemExit(f"{folder}: exit code {outcome.returncode}\n{outcome.output[-4000:]}")
    return [dict(row) for row in read_metrics([LocalStore(folder / "out" / recipe.spec)]) if TRAINING in row]


def named(rows: Rows) -> list[tuple[int, str]]:
    """(number of the row from 1, fault) of everything that a fresh monitor names."""
    monitor, found, active = Monitor(), list[tuple[int, str]](), set[str]()
    for number, row in enumerate(rows, start=1):
        bare = {name: value for name, value in row.items() if not name.startswith(PREFIX)}
        now = {name.removeprefix(PREFIX) for name, value in monitor.see(number, bare)[0].items() if value}
        found += [(number, fault) for fault in sorted(now - active)]
        active = now
    return found


class Judged(NamedTuple):
    """The monitor's words in one turn: the right name and its step of the fault, other names after it, and names before it."""

    fault: str
    named: str  # empty: it was missed
    also: tuple[str, ...]
    early: tuple[str, ...]


def judge(rows: Rows, turn: Turn) -> Judged:
    """Judge the turn as a run of its own."""
    found = [(number - (turn.first - turn.begins), name) for number, name in named(rows[turn.begins - 1 : turn.last])]
    late = [(step, name) for step, name in found if step > 0]
    right = next(((step, name) for step, name in late if name in INJECTED[turn.fault].names), None)
    also = tuple(f"`{name}`" for _, name in late if right is None or name != right[1])
    early = tuple(f"`{name}`" for step, name in found if step <= 0)
    return Judged(turn.fault, f"`{right[1]}`, step {right[0]}" if right else "", also, early)


def markdown(judged: dict[str, list[Judged]], accused: dict[str, list[str]]) -> str:
    """Return the table of the last runs."""
    lines = [
        "# Silent faults: the last run of `make silent-faults`",
        "",
        f"Written by the run. A turn has {NUM_SOUND} sound steps, then the fault; steps count from its first. Limits were set on the recipes",
        "named `set-on`; the others have another loss, batch, temperature, rate and seed, and weaker faults (`recipes.py`).",
        "",
        f"{datetime.date.today().isoformat()}, commit {this_commit(TABLE, *RECORDED.glob('*'))}.",
        "",
        "| fault | done | named in each recipe | named as well |",
        "| --- | --- | --- | --- |",
    ]
    for fault, injected in INJECTED.items():
        of_fault = [one for found in judged.values() for one in found if one.fault == fault]
        also = ", ".join(dict.fromkeys(name for one in of_fault for name in one.also)) or "–"
        right = "; ".join(one.named or "**missed**" for one in of_fault)
        lines.append(f"| {fault} | {injected.done} | {right} | {also} |")
    lines += ["", "| sound | steps | named |", "| --- | ---: | --- |"]
    for name, found in judged.items():
        early = ", ".join(finding for one in found for finding in one.early) or "nothing"
        lines.append(f"| {name}, before its faults | {len(found) * NUM_SOUND} | {early} |")
        wrong = ", ".join(accused[name]) or "nothing"
        lines.append(
            f"| {name}, {NUM_SOUND_RUNS} runs without a fault | {NUM_SOUND_RUNS * NUM_SOUND_STEPS} | {wrong} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run every recipe, record its rows and write the table; 1 where a fault was missed or a sound run accused."""
    judged, accused = {}, {}
    for name, recipe in RECIPES.items():
        planned = turns(recipe.faults)
        rows = play(recipe, planned, FOLDER / name)
        record(rows, RECORDED / f"{name}.json")
        judged[name] = [judge(rows, turn) for turn in planned]
        sound = play(recipe, SOUND_RUNS, FOLDER / f"{name}-sound", f"seed={SOUND_SEED}")
        accused[name] = [
            f"`{fault}` in row {number} of the run from step {turn.begins}"
            for turn in SOUND_RUNS
            for number, fault in named(sound[turn.begins - 1 : turn.last])
        ]
    text = markdown(judged, accused)
    print(text)
    TABLE.write_text(text)
    is_wrong = any(not one.named or one.early for found in judged.values() for one in found)
    return int(is_wrong or any(accused.values()))


def record(rows: Rows, path: Path) -> None:
    """Keep the metrics that the monitor's sources name: a list a metric, four digits a value, null where a row lacks it."""
    sources = [*(ROOT / "src/opd/monitor").glob("*.py"), ROOT / "src/opd/runs/headline.py"]
    judges = {name for source in sources for name in re.findall(r'"([\w/]+/[\w/]+)"', source.read_text())}
    names = sorted({name for row in rows for name in row} & {*judges, TRAINING})
    columns = {
        name: [None if (value := row.get(name)) is None else float(f"{value:.4g}") for row in rows] for name in names
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(column)}" for name, column in columns.items())
    path.write_text(f"{{\n{lines}\n}}\n")


def recorded(path: Path) -> Rows:
    """Return the rows of `record`."""
    columns = json.loads(path.read_text())
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


if __name__ == "__main__":
    sys.exit(main())
