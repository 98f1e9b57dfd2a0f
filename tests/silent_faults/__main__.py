"""`python -m tests.silent_faults`: inject the faults into real runs, judge what the monitor named, write RESULTS.md.

Faults take turns within one run of each recipe. Each turn is then judged as a run of its own: the monitor sees its rows
from the first on. Rows are in build/silent-faults; `--judge` goes through them again without running anything.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd.monitor.monitor import PREFIX, TRAINING, Monitor
from opd.runs.metrics import read_metrics
from opd.store.local import LocalStore
from tests.commit import this_commit
from tests.e2e_cpu.runs import ROOT, finish, start
from tests.silent_faults import inject
from tests.silent_faults.recipes import INJECTED, NUM_FAULTY, NUM_FAULTY_SLOW, NUM_SOUND, RECIPES, Recipe

FOLDER = ROOT / "build" / "silent-faults"
TABLE = Path(__file__).parent / "RESULTS.md"
NUM_SOUND_RUNS = 25
NUM_SOUND_STEPS = 20
SOUND_SEED = 21
RECORDED = Path(__file__).parent / "recorded"
TIMEOUT_S = 3600.0
Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A fault's steps in a run: sound up to `first`, faulty from there to `last`; then the weights of the run's start come back."""

    fault: str
    """Empty: there is none."""
    begins: int
    first: int
    last: int


def turns(faults: Sequence[str]) -> list[Turn]:
    found, last = [], 0
    for fault in faults:
        sound = last + NUM_SOUND
        found.append(
            Turn(fault=fault, begins=last + 1, first=sound + 1, last=(last := sound + INJECTED[fault].num_faulty))
        )
    return found


SOUND_RUNS = [
    Turn(fault="", begins=last - NUM_SOUND_STEPS + 1, first=last - NUM_SOUND_STEPS + 1, last=last)
    for last in range(NUM_SOUND_STEPS, (NUM_SOUND_RUNS + 1) * NUM_SOUND_STEPS, NUM_SOUND_STEPS)
]


def play(recipe: Recipe, played: Sequence[Turn], folder: Path, *sets: str) -> None:
    """Run the recipe with the faults in turn."""
    shutil.rmtree(folder, ignore_errors=True)
    schedule = [
        {
            "fault": turn.fault, "first": turn.first, "last": turn.last, "ends": turn.last,
            "strength": INJECTED[turn.fault].strengths[recipe.number] if turn.fault else 0.0,
        }
        for turn in played
    ]  # fmt: skip
    os.environ |= {
        inject.SCHEDULE: json.dumps(schedule),
        "RAY_worker_niceness": "0",  # 15 by default: on a busy machine the workers would hardly run next to other work
        "VERL_USE_EXTERNAL_MODULES": inject.__name__,
        "PYTHONPATH": os.pathsep.join(str(part) for part in (ROOT / "src", ROOT)),
    }
    settings = ["trainer.val_before_train=false", f"trainer.total_steps={played[-1].last}", "actor.num_warmup_steps=0"]
    process = start(folder, recipe.spec, *settings, *recipe.sets, *sets)
    outcome = finish(process, folder, recipe.spec, TIMEOUT_S)
    if outcome.returncode:
        raise SystemExit(f"{folder}: exit code {outcome.returncode}\n{outcome.output[-4000:]}")


def named(rows: Rows) -> list[tuple[int, str, str]]:
    """(number of the row from 1, fault, line) of everything that a fresh monitor names."""
    monitor, found, active = Monitor(), [], set()
    for number, row in enumerate(rows, start=1):
        bare = {name: value for name, value in row.items() if not name.startswith(PREFIX)}
        metrics, lines = monitor.see(number, bare)
        now = {name.removeprefix(PREFIX) for name, value in metrics.items() if value}
        for fault in sorted(now - active):
            found.append((number, fault, next(line for line in lines if f"({fault})" in line)))
        active = now
    return found


def accused(rows: Rows) -> tuple[int, list[str]]:
    """Return of a run whose first weights came back without a fault how often it began, and what was named."""
    begun = [turn for turn in SOUND_RUNS if turn.last <= len(rows)]
    found = [
        f"`{name}`, run {number}, step {step}"
        for number, turn in enumerate(begun, start=1)
        for step, name, _ in named(rows[turn.begins - 1 : turn.last])
    ]
    return len(begun), found


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The monitor's findings of one turn."""

    fault: str
    named: str
    """Name and step of the fault at which it was named right; empty: it was not."""
    also: tuple[str, ...]
    """What else it named behind the fault's first step."""
    early: tuple[str, ...]
    """What it named before."""


def judge(rows: Rows, turn: Turn) -> Judged:
    """The turn as a run of its own."""
    found = [(number - NUM_SOUND, name) for number, name, _ in named(rows[turn.begins - 1 : turn.last])]
    late = [(step, name) for step, name in found if step > 0]
    right = next(((step, name) for step, name in late if name in INJECTED[turn.fault].names), None)
    return Judged(
        fault=turn.fault,
        named=f"`{right[1]}`, step {right[0]}" if right else "",
        also=tuple(f"`{name}`" for _, name in late if right is None or name != right[1]),
        early=tuple(f"`{name}`" for step, name in found if step <= 0),
    )


def markdown(judged: dict[str, list[Judged]], sound: dict[str, Rows]) -> str:
    """The table of the last runs."""
    lines = [
        "# Silent faults: the last run of `make silent-faults`",
        "",
        "Written by the run. Faults take turns within one real run of each recipe (a file of `tests/e2e_cpu/specs` with the settings of",
        f"`recipes.py`): {NUM_SOUND} sound steps, {NUM_FAULTY} with the fault ({NUM_FAULTY_SLOW} with one that grows), then the weights of the run's start and a fresh",
        "optimizer again. Each turn is judged as a run of its own. Steps count from the fault's first. Limits were set on the recipe `set-on`; `judged-on` has another loss,",
        "batch, temperature, rate, seed, number of answers, and weaker faults. Faults of what tools wrote are injected into `agent-set-on` and",
        "`agent-judged-on`, conversations with tools that differ in the same way; no limit was set on either, but which turns are compared",
        "for `length-inflation` was settled on the sound runs of `agent-set-on`, before those of `agent-judged-on` were looked at. In the sound runs",
        "the weights of the start and a fresh optimizer come back every so many steps without any fault, with other prompts and noise.",
        "",
        f"{datetime.date.today().isoformat()}, commit {this_commit(TABLE, *RECORDED.glob('*'))}, Python {platform.python_version()}, {os.cpu_count()} cores.",
        "",
        "| fault | done | set-on | judged-on | named as well |",
        "| --- | --- | --- | --- | --- |",
    ]
    for fault, injected in INJECTED.items():
        of_fault = [one for recipe in judged.values() for one in recipe if one.fault == fault]
        if not of_fault:
            continue
        also = ", ".join(dict.fromkeys(name for one in of_fault for name in one.also)) or "–"
        cells = [
            next((one.named or "**missed**" for one in judged[recipe.name] if one.fault == fault), "not run")
            for recipe in RECIPES.values()
            if recipe.spec == injected.spec
        ]
        lines.append(f"| {fault} | {injected.done} | " + " | ".join(cells) + f" | {also} |")
    lines += ["", "| sound | steps | named |", "| --- | ---: | --- |"]
    for name, recipe in judged.items():
        if not recipe:
            continue
        early = [finding for one in recipe for finding in one.early]
        lines.append(
            f"| the {len(recipe)} turns of {name} before their faults | {len(recipe) * NUM_SOUND} | {', '.join(early) or 'nothing'} |"
        )
    for name, rows in sound.items():
        num_runs, found = accused(rows)
        lines.append(
            f"| {num_runs} runs of {name}, {NUM_SOUND_STEPS} steps each | {num_runs * NUM_SOUND_STEPS} | {', '.join(found) or 'nothing'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command line; 1 where a fault was missed or a sound run accused."""
    parser = argparse.ArgumentParser(prog="python -m tests.silent_faults", description=__doc__.splitlines()[0])
    parser.add_argument("faults", nargs="*", help=f"by default all: {', '.join(INJECTED)}")
    parser.add_argument("--recipe", choices=list(RECIPES), help="by default all")
    parser.add_argument("--judge", action="store_true", help="judge the rows of the last runs again, and run nothing")
    args = parser.parse_args()
    wanted = {
        recipe.name: [fault for fault in recipe.faults if fault in args.faults or not args.faults]
        for recipe in RECIPES.values()
    }
    chosen = [RECIPES[args.recipe]] if args.recipe else list(RECIPES.values())
    if not args.judge:
        for recipe in chosen:
            if wanted[recipe.name]:
                play(recipe, turns(wanted[recipe.name]), FOLDER / recipe.name)
                play(recipe, SOUND_RUNS, FOLDER / f"{recipe.name}-sound", f"seed={SOUND_SEED}")
    judged, sound = {}, {}
    for recipe in RECIPES.values():
        rows = _kept(recipe) or []
        judged[recipe.name] = [judge(rows, turn) for turn in turns(wanted[recipe.name]) if turn.last <= len(rows)]
        if (found := _kept(recipe, "-sound")) is not None:
            sound[f"{recipe.name}, seed {SOUND_SEED}"] = found
    text = markdown(judged, sound)
    print(text)
    if not args.faults:
        TABLE.write_text(text)
        for one in RECIPES.values():
            if judged[one.name] and all(found.named for found in judged[one.name]):
                record(_kept(one) or [], RECORDED / f"{one.name}.json")
    missed = [one for recipe in judged.values() for one in recipe if not one.named or one.early]
    return 1 if missed or any(accused(rows)[1] for rows in sound.values()) else 0


def judged_names() -> set[str]:
    """Return the metrics that the monitor names in its sources."""
    sources = [*(ROOT / "src/opd/monitor").glob("*.py"), ROOT / "src/opd/runs/headline.py"]
    found = {name for source in sources for name in re.findall(r'"([\w/]+/[\w/]+)"', source.read_text())}
    return found | {TRAINING, "data/duplicate_prompts", "data/repeated_prompts"}


def record(rows: Rows, path: Path) -> None:
    """Keep what the monitor judges: a list a metric, four digits a value, null where a row lacks it."""
    names = sorted({name for row in rows for name in row} & judged_names())
    columns = {
        name: [None if (value := row.get(name)) is None else float(f"{value:.4g}") for row in rows] for name in names
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(column)}" for name, column in columns.items()) + "\n}\n"
    )


def recorded(path: Path) -> Rows:
    """The rows of `record`."""
    columns = json.loads(path.read_text())
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _kept(recipe: Recipe, suffix: str = "") -> Rows | None:
    """Return the rows of a run's folder, also of an unfinished run. None means that there is none."""
    run_dir = FOLDER / f"{recipe.name}{suffix}" / "out" / recipe.spec
    if not run_dir.is_dir():
        return None
    return [dict(row) for row in read_metrics([LocalStore(run_dir)]) if TRAINING in row]


if __name__ == "__main__":
    sys.exit(main())
