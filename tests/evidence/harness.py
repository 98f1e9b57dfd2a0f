"""The harness: trains every cell of the studies on the toy chains, measures it, and writes results and table.

Apart from `__main__`, which the pool's processes could not import again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.evidence import models
from tests.evidence.cells import RAW, START, STUDIES, Cell, cell_of, judged_teacher, seeds_of, study_cells
from tests.evidence.settings import Settings, settings_of
from tests.evidence.table import table
from tests.evidence.tasks import Log, Task, perform

LOG_FILE, RESULTS_FILE, TABLE_FILE, MODELS_DIR = "results.jsonl", "results.json", "RESULTS.md", "models"
Plan = Sequence[tuple[str, Cell, int]]
"""Study, cell and seed of each run."""
TEACHER_SEED = 0
COUNTED = ("updates", "trained_tokens", "generated_tokens", "generated_by_teacher", "seconds", "device")


@dataclass(frozen=True, kw_only=True)
class Session:
    """One call of the command: where it runs, and what has run."""

    pool: Executor
    log: Log
    folder: Path
    device: str
    settings: Mapping[str, Settings]
    """Of each study."""

    def make(self, wanted: Iterable[tuple[str, int]]) -> None:
        """Models, by name and seed, that lessons alone make."""
        made = [
            self.pool.submit(models.make, self.folder, name, seed=seed, device=self.device)
            for name, seed in dict.fromkeys(wanted)
        ]
        for future in made:
            future.result()

    def run(self, tasks: Iterable[Task]) -> None:
        """Run what the log lacks; each line is on disk as soon as its run ends."""
        todo = {task.key: task for task in tasks if not task.is_done(self.log)}
        futures = [self.pool.submit(perform, task) for task in todo.values()]
        for number, future in enumerate(as_completed(futures), start=1):
            line = future.result()
            self.log.add(line)
            print(f"{number}/{len(futures)} {line['cell'] or line['model']} seed {line['seed']}", flush=True)

    def measuring(self, study: str, model: str, seed: int) -> Task:
        return self._task(study, None, seed, learner=model)

    def training(self, study: str, cell: Cell, seed: int) -> Task:
        """Of a cell whose teacher is there, and whose learner has been measured."""
        learner = models.learner_name(cell.learner, seed)
        start = self.log.of(self.measuring(study, learner, seed))
        teacher = cell.teacher and self.teacher(study, cell.teacher, seed)
        return self._task(study, cell, seed, learner=learner, teacher=teacher, start=start)

    def teacher(self, study: str, name: str, seed: int) -> str:
        """The model that a cell calls by this name."""
        trained = cell_of(study, name)
        if trained is not None:
            return self.training(study, trained, seed).product
        return models.learner_name(RAW, seed) if name == RAW else name

    def _task(self, study: str, cell: Cell | None, seed: int, **named: Any) -> Task:
        common: dict[str, Any] = {"settings": self.settings[study], "folder": self.folder, "device": self.device}
        return Task(cell=cell, seed=seed, **common, **named)


def run_plan(session: Session, cells: Plan) -> list[dict[str, Any]]:
    """Make the models, measure them, run every cell that has not run yet, and return all results of the plan.

    A teacher that is itself a cell's work runs first, and is one of the results.
    """
    wanted = ((study, cell_of(study, judged_teacher(study, cell)), seed) for study, cell, seed in cells)
    teachers = [(study, cell, seed) for study, cell, seed in wanted if cell is not None]
    plan = list(dict.fromkeys((*teachers, *cells)))
    session.make([(models.TEACHER, TEACHER_SEED), *((models.learner_name(START, seed), seed) for _, _, seed in plan)])
    session.make(
        (models.learner_name(RAW, seed), seed) for _, cell, seed in plan if RAW in (cell.learner, cell.teacher)
    )
    session.run(session.measuring(study, models.learner_name(cell.learner, seed), seed) for study, cell, seed in plan)
    session.run(session.training(*one) for one in teachers)
    session.run(
        session.measuring(study, session.teacher(study, judged_teacher(study, cell), seed), seed)
        for study, cell, seed in plan
    )
    session.run(session.training(*one) for one in plan)
    return [_result(session, *one) for one in plan]


def _result(session: Session, study: str, cell: Cell, seed: int) -> dict[str, Any]:
    """What is written of one run."""
    task = session.training(study, cell, seed)
    teacher = session.teacher(study, judged_teacher(study, cell), seed)
    line, before, taught = (
        session.log[one] for one in (task, *(session.measuring(study, name, seed) for name in (task.learner, teacher)))
    )
    trained = cell.teacher and cell_of(study, cell.teacher)
    measured = {"before": before["measured"], "after": line["after"], "teacher": taught["measured"]}
    return (
        {"study": study, "cell": cell.name, "seed": seed}
        | {f"score_{when}": one["score"] for when, one in measured.items()}
        | {name: line[name] for name in COUNTED}
        | {
            "teacher_training_tokens": session.log[session.training(study, trained, seed)]["generated_tokens"]
            if trained
            else 0
        }
        | measured
    )


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    changed = {key: json.loads(value) for key, value in (item.split("=") for item in args.set)}
    args.out.mkdir(parents=True, exist_ok=True)
    cells = [
        (study, cell, seed)
        for study in (STUDIES if args.study is None else (args.study,))
        for cell in study_cells(study)
        if not args.cells or cell.name in args.cells
        for seed in args.seeds or seeds_of(cell.name)
    ]
    cells.sort(key=lambda one: one[2])  # seed by seed: what is cut short has whole pairs
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        session = Session(
            pool=pool,
            log=Log(args.out / LOG_FILE),
            folder=args.models or args.out / MODELS_DIR,
            device=args.device,
            settings={study: settings_of(study, changed) for study in STUDIES},
        )
        found = run_plan(session, cells)
    _write(args.out / RESULTS_FILE, json.dumps(found, indent=1) + "\n")
    _write(args.table or args.out / TABLE_FILE, table(found))
    print(f"{len(found)} results in {args.out / RESULTS_FILE}")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.evidence", description="Compare ways to train a student on the toy chains."
    )
    parser.add_argument("--study", choices=STUDIES, help="default: all")
    parser.add_argument("--cells", nargs="+", default=[], metavar="CELL", help="these alone")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[], help="these alone (default: 1 to 5, primary ones to 10)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=NUMBER", help="a field of Settings, as in num_updates=20"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/evidence"), help="kept between calls: what ran is not run again"
    )
    parser.add_argument("--table", type=Path, help="Markdown to write (default: RESULTS.md in --out)")
    parser.add_argument("--models", type=Path, help="folder of teacher and starts (default: models in --out)")
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: the cores)"
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: a GPU if there is one"
    )
    return parser.parse_args(argv)


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(text)
    temporary.replace(path)
