"""Tiny models, tasks and a small database of the travel environment, on which a laptop trains: `agent://NAME`.

A task looks one price up, in a database whose prices are drawn anew for every episode.
"""

from pathlib import Path

from opd.data.rows import Row, write_files
from opd_envs import LANGUAGES
from opd_envs.rows import AGENT_SCHEMA
from opd_envs.travel.database import Database
from opd_envs.travel.generate import generate_task
from opd_envs.travel.make_database import write_database
from opd_envs.travel.words import generated_row

ASSETS_DIR = Path(__file__).with_name("assets")
"""The committed model folders; `python -m tests.agent_evidence.make_models` makes them."""
TEACHER, STUDENT = "teacher", "student"
MODELS = {name: ASSETS_DIR / name for name in (STUDENT, TEACHER)}
"""Hugging Face folders: a teacher that looks prices up, and a student that copies badly."""
NUM_CITIES = 60
"""Cities of the database; a question names one of them and one of its 40 places."""
NUM_TRAIN, NUM_HELDOUT = 2400, 200
LESSONS_SEED, HELDOUT_SEED = 2**40, 2**41
"""Beyond a run's seeds (below 2^31), to which `HELDOUT_SEED` is added: no held-out episode is ever trained on."""


def place(name: str, folder: Path, *, seed: int) -> Path:
    """Return the path of `agent://NAME`: a model, or files of a run's seed that are written to `folder` first.

    Raises:
        ValueError: an unknown name.
    """
    if name in MODELS:
        return MODELS[name]
    files = {split: folder / f"{split}.parquet" for split in ("train", "heldout")}
    paths = {"database": folder / "database", **files}
    if name not in paths:
        known = ", ".join(f"agent://{known}" for known in (*MODELS, *paths))
        raise ValueError(f"agent://{name}: unknown; known names are {known}")
    make_world(paths["database"])
    if not (name == "database" or all(path.exists() for path in files.values())):
        database = open_world(paths["database"])
        train = rows(database, seed=seed, split="train", num_rows=NUM_TRAIN)
        tables = {files["train"]: train, files["heldout"]: heldout_rows(database, seed=seed)}
        write_files(tables, {}, schema=AGENT_SCHEMA)
    return paths[name]


def make_world(folder: Path) -> Path:
    """Write the tool database where it is missing, whole or not at all."""
    if not folder.exists():
        write_database(folder, seed=0, num_cities=NUM_CITIES)
    return folder


def open_world(folder: Path) -> Database:
    """Open the tool database, written first where it is missing."""
    return Database(make_world(folder))


def rows(database: Database, *, seed: int, split: str, num_rows: int) -> list[Row]:
    """Return tasks of the simplest grade, languages in turn, each with its own episode and the tools that it needs."""
    tasks = (
        generate_task(database, seed=seed, grade=0, language=LANGUAGES[index % len(LANGUAGES)], number=index)
        for index in range(num_rows)
    )
    return [
        generated_row(task, split=split, index=index, tool_selection=list(task.tools))
        for index, task in enumerate(tasks)
    ]


def heldout_rows(database: Database, *, seed: int) -> list[Row]:
    """Return a run's held-out tasks."""
    return rows(database, seed=HELDOUT_SEED + seed, split="val", num_rows=NUM_HELDOUT)
