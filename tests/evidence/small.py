"""The harness at a size for tests: models without lessons, a few problems, two updates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.evidence import models
from tests.evidence.cells import BRIDGE, STUDIES, Cell, cell_of
from tests.evidence.harness import LOG_FILE, Session, run_plan
from tests.evidence.settings import Settings
from tests.evidence.tasks import Log
from tests.evidence.train import Run

CPU = torch.device("cpu")
SMALL = Settings(num_updates=2, batch_size=6, num_problems=20, num_rate_answers=1, num_heldout=5, num_heldout_answers=2)
SMALL_BRIDGE = replace(SMALL, num_answers=3, split=True)
START = {"pass_rates": [0.0, 0.5, 1.0, 0.25] * 5, "response_length": 40.0}


def make_run(cell: Cell, folder: Path, settings: Settings = SMALL) -> Run:
    """Of a cell with any teacher, the one that has had no lessons."""
    learner = models.learner_name(cell.learner, 1)
    teacher = cell.teacher and "teacher"
    return Run(cell, settings, seed=1, folder=folder, device=CPU, start=START, learner=learner, teacher=teacher)


def named(study: str, name: str) -> Cell:
    cell = cell_of(study, name)
    assert cell is not None
    return cell


def run_small(out: Path, folder: Path, cells: list[tuple[str, Cell, int]]) -> list[dict[str, Any]]:
    settings = dict.fromkeys(STUDIES, SMALL) | {BRIDGE: SMALL_BRIDGE}
    with ThreadPoolExecutor(1) as pool:
        session = Session(pool=pool, log=Log(out / LOG_FILE), folder=folder, device="cpu", settings=settings)
        return run_plan(session, cells)
