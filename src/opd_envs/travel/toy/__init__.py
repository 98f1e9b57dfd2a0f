"""Tiny models, tasks and a small database of the travel environment, on which a laptop trains: `agent://NAME`."""

from collections.abc import Callable
from pathlib import Path

ASSETS_DIR = Path(__file__).with_name("assets")
"""The committed model folders; `python -m tests.agent_evidence.make_models` makes them."""
TEACHER, STUDENT = "teacher", "student"
MODELS = {name: ASSETS_DIR / name for name in (STUDENT, TEACHER)}
"""Hugging Face folders: a teacher that looks prices up, and a student that copies badly."""


def model_folder(name: str) -> Path:
    """Return the folder of `TEACHER` or `STUDENT`."""
    return MODELS[name]


def place(name: str, folder: Path, *, seed: int) -> Path:
    """Return the path behind `agent://NAME`: a model, or files of a run's seed that are written to `folder` first.

    Raises:
        ValueError: an unknown name.
    """
    from opd_envs.travel.toy.task import make_world, write_tasks

    database = folder / "database"
    made: dict[str, Callable[[], Path]] = {
        "database": lambda: make_world(database),
        "train": lambda: write_tasks(folder, make_world(database), seed=seed)[0],
        "heldout": lambda: write_tasks(folder, make_world(database), seed=seed)[1],
    }
    if name in MODELS:
        return MODELS[name]
    if name not in made:
        known = ", ".join(f"agent://{known}" for known in (*MODELS, *made))
        raise ValueError(f"agent://{name}: unknown; known names are {known}")
    return made[name]()
