"""The toy task: two-digit addition, with a tokenizer and two tiny Qwen3 models on which distillation really learns on a CPU."""

from pathlib import Path

ASSETS_DIR = Path(__file__).parent / "assets"
"""The committed model folders; `python -m tests.toy_models.make_models` makes them."""
TEACHER_DIR = ASSETS_DIR / "teacher"
"""A Hugging Face folder: the teacher, which solves the task (bf16)."""
STUDENT_DIR = ASSETS_DIR / "student"
"""A Hugging Face folder: the student's start, which drops every carry (fp32)."""
TOY = "toy://"
"""Begin of the names of all that is bundled."""
MODELS = {f"{TOY}student": STUDENT_DIR, f"{TOY}teacher": TEACHER_DIR}
"""The bundled models by the name that an experiment gives them."""


def model_folder(path: str) -> str:
    """Return the folder of a `toy://` model; any other path or id as it is.

    Raises:
        ValueError: an unknown name after TOY.
    """
    if path.startswith(TOY) and path not in MODELS:
        raise ValueError(f"{path}: unknown; known models are {', '.join(MODELS)}")
    return str(MODELS.get(path, path))
