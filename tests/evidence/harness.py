"""The harness: trains every cell of the studies on the toy chains, measures it, and writes results and table.

Apart from `__main__`, which the pool's processes could not import again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tests.evidence import models
from tests.evidence.cells import STUDIES, Cell, seeds_of, study_cells
from tests.evidence.table import table
from tests.evidence.train import Settings, measure, pass_rates, run_cell

LOG_FILE, RESULTS_FILE, TABLE_FILE, MODELS_DIR = "results.jsonl", "results.json", "RESULTS.md", "models"
Plan = Sequence[tuple[str, Cell, int]]
"""Study, cell and seed of each run."""
TEACHER_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run, or with no cell the measurement of a start and of the teacher, which the runs of its seed need."""

    cell: Cell | None
    seed: int
    settings: Settings
    folder: Path
    device: str
    start: dict[str, Any] | None = None
    """What the measurement found."""

    @property
    def key(self) -> str:
        """Identity of the result: cell, settings, and the models' bits. A line with another key is another experiment's."""
        cell = None if self.cell is None else asdict(self.cell) | {"tokens": self.cell.tokens.model_dump()}
        parts = [cell, self.seed, asdict(self.settings), *(models.sha256(self.folder, name) for name in self.names)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def names(self) -> tuple[str, str]:
        return models.TEACHER, models.start_name(self.seed)


def perform(task: Task) -> dict[str, Any]:
    """In a worker: one line of the log."""
    device = torch.device(task.device)
    line: dict[str, Any] = {"key": task.key, "cell": task.cell and task.cell.name, "seed": task.seed}
    if task.cell is None:
        teacher, start = (models.load(task.folder, name, device) for name in task.names)
        return line | {
            "before": measure(start, task.settings, seed=task.seed),
            "teacher": measure(teacher, task.settings, seed=task.seed),
            "pass_rates": pass_rates(start, task.settings, seed=task.seed),
        }
    assert task.start is not None
    start_of_run = {"pass_rates": task.start["pass_rates"], "response_length": task.start["before"]["response_length"]}
    return line | run_cell(
        task.cell, task.settings, seed=task.seed, folder=task.folder, device=device, start=start_of_run
    )


class Log:
    """The lines of all runs that ended; what is there is not run again."""

    def __init__(self, path: Path):
        self._path = path
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a line that was cut off by a kill never ended
        if whole != text:
            path.write_text(whole)
        self._lines = {line["key"]: line for line in map(json.loads, whole.splitlines())}

    def of(self, task: Task) -> dict[str, Any] | None:
        return self._lines.get(task.key)

    def add(self, line: dict[str, Any]) -> None:
        self._lines[line["key"]] = line
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def results(log: Log, plan: Iterable[tuple[str, Task]], starts: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each study, cell and seed that ran."""
    out = []
    for study, task in plan:
        line, start = log.of(task), starts[task.seed]
        if line is None or task.cell is None:
            continue
        scores = {
            "score_before": start["before"]["score"],
            "score_after": line["after"]["score"],
            "score_teacher": start["teacher"]["score"],
        }
        counted = {name: line[name] for name in ("updates", "trained_tokens", "generated_tokens", "seconds", "device")}
        measured = {"before": start["before"], "after": line["after"], "teacher": start["teacher"]}
        out.append({"study": study, "cell": task.cell.name, "seed": task.seed} | scores | counted | measured)
    return out


def run_plan(
    pool: Executor, out: Path, folder: Path, settings: Settings, cells: Plan, device: str
) -> list[dict[str, Any]]:
    """Make the models, measure the starts, run every cell that has not run yet, and return all results of the plan."""
    seeds = sorted({seed for _, _, seed in cells})
    wanted = [(models.TEACHER, TEACHER_SEED), *((models.start_name(seed), seed) for seed in seeds)]
    for future in [pool.submit(models.make, folder, name, seed=seed, device=device) for name, seed in wanted]:
        future.result()
    log = Log(out / LOG_FILE)
    common: dict[str, Any] = {"settings": settings, "folder": folder, "device": device}
    measuring = [Task(cell=None, seed=seed, **common) for seed in seeds]
    _run(pool, log, measuring)
    starts = {task.seed: log.of(task) or {} for task in measuring}
    plan = [(study, Task(cell=cell, seed=seed, start=starts[seed], **common)) for study, cell, seed in cells]
    _run(pool, log, [task for _, task in plan])
    return results(log, plan, starts)


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    settings = Settings(**{key: json.loads(value) for key, value in (item.split("=") for item in args.set)})
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
        folder = args.models or args.out / MODELS_DIR
        found = run_plan(pool, args.out, folder, settings, cells, args.device)
    _write(args.out / RESULTS_FILE, json.dumps(found, indent=1) + "\n")
    _write(args.table or args.out / TABLE_FILE, table(found))
    print(f"{len(found)} results in {args.out / RESULTS_FILE}")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.evidence", description="Compare the rules of opd.importance on the toy chains."
    )
    parser.add_argument("--study", choices=STUDIES, help="default: all three")
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


def _run(pool: Executor, log: Log, tasks: Iterable[Task]) -> None:
    """Run what the log lacks; each line is on disk as soon as its run ends."""
    todo = {task.key: task for task in tasks if log.of(task) is None}
    futures = [pool.submit(perform, task) for task in todo.values()]
    for number, future in enumerate(as_completed(futures), start=1):
        line = future.result()
        log.add(line)
        print(f"{number}/{len(futures)} {line['cell'] or 'start'} seed {line['seed']}", flush=True)


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(text)
    temporary.replace(path)
