"""The evidence's task: look one price up, in a database whose prices are drawn anew for every episode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from opd.data.rows import Row, write_files
from opd_envs.rows import AGENT_SCHEMA
from opd_envs.travel.database import Database, open_database
from opd_envs.travel.entries import LANGUAGES
from opd_envs.travel.generate import generate_task
from opd_envs.travel.make_database import write_database
from opd_envs.travel.words import generated_row

GRADE = 0
DATABASE_SEED = 0
NUM_CITIES = 60
"""Cities of the evidence's database; a question names one of them and one of its 40 places."""
NUM_TRAIN, NUM_HELDOUT = 2400, 200
LESSONS_SEED, HELDOUT_SEED = 2**40, 2**41
"""Beyond a run's seeds (below 2^31), to which `HELDOUT_SEED` is added: no held-out episode is ever trained on."""
TRAIN_FILE, HELDOUT_FILE = "train.parquet", "heldout.parquet"


def make_world(folder: Path) -> Path:
    """The tool database, made if it is not there; whole or not at all."""
    if not folder.exists():
        write_database(folder, seed=DATABASE_SEED, num_cities=NUM_CITIES)
    return folder


def rows(database: Database, *, seed: int, split: str, num_rows: int) -> list[Row]:
    """Tasks of the simplest grade, languages in turn, each with an episode of its own."""
    return list(_rows(database, seed, split, num_rows))


def _rows(database: Database, seed: int, split: str, num_rows: int) -> Iterator[Row]:
    for index in range(num_rows):
        task = generate_task(
            database, seed=seed, grade=GRADE, language=LANGUAGES[index % len(LANGUAGES)], number=index,
            episodes=True, num_cities=None,
        )  # fmt: skip
        yield generated_row(task, split=split, index=index, only_needed_tools=True)


def heldout_rows(database: Database, *, seed: int) -> list[Row]:
    """A run's held-out tasks."""
    return rows(database, seed=HELDOUT_SEED + seed, split="val", num_rows=NUM_HELDOUT)


def write_tasks(folder: Path, database_dir: Path, *, seed: int) -> tuple[Path, Path]:
    """A run's training and held-out tasks as verl reads them; their paths."""
    paths = folder / TRAIN_FILE, folder / HELDOUT_FILE
    if not all(path.exists() for path in paths):
        database = open_database(database_dir)
        train = rows(database, seed=seed, split="train", num_rows=NUM_TRAIN)
        heldout = heldout_rows(database, seed=seed)
        write_files(dict(zip(paths, (train, heldout), strict=True)), {}, schema=AGENT_SCHEMA)
    return paths


def open_world(folder: Path) -> Database:
    """The database for reading."""
    return open_database(make_world(folder))
