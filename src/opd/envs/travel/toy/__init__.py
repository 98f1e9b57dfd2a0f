"""Tiny models, tasks and a small database of the travel environment, on which a laptop trains: `agent://...` in experiments."""

from pathlib import Path

ASSETS_DIR = Path(__file__).with_name("assets")
"""The committed model folders; `python -m tests.agent_evidence.make_models` makes them."""
TEACHER, STUDENT = "teacher", "student"


def model_folder(name: str) -> Path:
    """The Hugging Face folder of `TEACHER`, which looks prices up, or `STUDENT`, which copies badly."""
    return ASSETS_DIR / name


PREFIX = "agent://"
MODELS = {PREFIX + name: model_folder(name) for name in (STUDENT, TEACHER)}
"""The bundled models by the name that an experiment gives them."""
